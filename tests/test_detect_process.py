"""`kube-proxy-nft detect` as a process: signals, pipes, terminals, and what it opens."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.detect.findings import Report
from tests.cluster_api import config

REPO = Path(__file__).parents[1]
PROGRAM = """
import argparse, sys
from proxy import logs
from proxy.detect import arguments, command
from proxy.errors import UserError
parser = argparse.ArgumentParser()
arguments.add_parser(parser.add_subparsers())
options = parser.parse_args(["detect", *sys.argv[1:]])
logs.configure()
try:
    sys.exit(command.run(options))
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""
IPVS = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.conf"
    path.write_text(IPVS)
    return path


ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "NO_COLOR", "KUBECONFIG")
} | {"PYTHONPATH": str(REPO)}


def process(*argv: str, program: str = PROGRAM, **options: Any) -> subprocess.CompletedProcess[str]:
    command_line = [sys.executable, "-c", program, *argv]
    return subprocess.run(command_line, text=True, capture_output=True, timeout=60, env=ENVIRONMENT, **options)


@contextlib.contextmanager
def watching(*argv: str, program: str = PROGRAM, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    command_line = [sys.executable, "-c", program, "--watch", *argv]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, env=ENVIRONMENT, **options) as running:
        try:
            yield running
        finally:
            running.kill()


def test_standard_input(file: Path) -> None:
    done = process("--config", "-", "--kubernetes-version", "1.40", "--exit-code", "-o", "json", input=IPVS)
    assert done.returncode == 1 and done.stderr == ""
    found = msgspec.json.decode(done.stdout, type=Report)
    assert found.findings[0].severity == "broken" and found.evidence[0].place.name == "-"


def test_an_error_is_one_line_and_nothing_on_standard_output(tmp_path: Path) -> None:
    done = process("--config", str(tmp_path / "none"), "-o", "json")
    assert (done.returncode, done.stdout) == (3, "") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watch_in_json_is_one_document_a_line_until_a_signal(number: signal.Signals, file: Path) -> None:
    with watching("--config", str(file), "-o", "json", "--kubernetes-version", "1.36") as running:
        assert running.stdout
        first = msgspec.json.decode(running.stdout.readline(), type=Report)
        file.write_text(config("nftables"))
        second = msgspec.json.decode(running.stdout.readline(), type=Report)
        running.send_signal(number)
        assert running.wait(10) == 0
        assert running.stdout.read() == b""
    assert [f.check for f in first.findings] == ["ipvs-mode"] and second.findings == ()


def test_a_watch_ends_with_the_exit_code_of_what_it_saw_last(file: Path) -> None:
    with watching("--config", str(file), "-o", "yaml", "--kubernetes-version", "1.36", "--exit-code") as running:
        assert running.stdout and running.stdout.readline() == b"---\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == 1


def test_a_watch_keeps_its_exit_code_however_long_python_needs_to_end(file: Path) -> None:
    slow = PROGRAM.replace(
        "import argparse, sys", "import argparse, atexit, sys, time\natexit.register(time.sleep, 1.5)"
    )
    arguments = ("--config", str(file), "--kubernetes-version", "1.36", "--exit-code")
    with watching(*arguments, program=slow) as running:
        assert running.stdout and running.stdout.readline()
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 1


def test_a_watch_ends_when_nobody_reads(file: Path) -> None:
    with watching("--config", str(file)) as running:
        assert running.stdout
        running.stdout.readline()
        running.stdout.close()
        file.write_text(config("nftables"))
        assert running.wait(20) == 0


@pytest.mark.parametrize("format", ["text", "json", "yaml"])
def test_a_reader_that_has_had_enough_is_no_error(format: str, file: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command_line = [sys.executable, "-c", PROGRAM, "--config", str(file), "-o", format]
    done = subprocess.run(command_line, stdout=writer, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_and_a_closed_output_are_said(file: Path) -> None:
    with open("/dev/full", "wb") as full:
        command_line = [sys.executable, "-c", PROGRAM, "--config", str(file)]
        done = subprocess.run(command_line, stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=60)
        assert done.returncode == 1 and b"standard output: No space left" in done.stderr
        done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command_line], capture_output=True, env=ENVIRONMENT)
        assert done.returncode == 1 and b"standard output: it is closed" in done.stderr


def test_colours_on_a_terminal(file: Path) -> None:
    ours, theirs = pty.openpty()
    command_line = [sys.executable, "-c", PROGRAM, "--config", str(file)]
    subprocess.run(command_line, stdout=theirs, env=ENVIRONMENT, timeout=60, check=True)
    os.close(theirs)
    said = os.read(ours, 1 << 16)
    os.close(ours)
    assert b"\033[1;33mDEPRECATED" in said


def test_any_locale(file: Path) -> None:
    file.write_text(config("ípvs"))
    environment = ENVIRONMENT | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    command_line = [sys.executable, "-c", PROGRAM, "--config", str(file)]
    done = subprocess.run(command_line, capture_output=True, env=environment, timeout=60)
    assert done.returncode == 0 and "ípvs".encode() in done.stdout


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.yaml"
    with open(path, "w") as file:
        file.write(IPVS)
    done = process("--config", os.fsdecode(path), "-o", "json")
    assert done.returncode == 0 and json.loads(done.stdout)["evidence"][0]["place"]["name"].endswith("/\ufffd.yaml")


def test_this_machine() -> None:
    """Whatever it is: a report, and no failure."""
    began = time.monotonic()
    done = process("-o", "json")
    assert done.returncode == 0 and msgspec.json.decode(done.stdout, type=Report).nodes, time.monotonic() - began


def test_nothing_of_the_machine_is_read(file: Path) -> None:
    """Told by the interpreter itself: which files it opens after its modules are there, and that there are no sockets."""
    spy = """
import sys
import proxy.detect.command, proxy.detect.files, proxy.detect.node, proxy.apiserver, encodings.idna
seen = []
def hook(event, arguments):
    if event == "open" or event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.listdir", "os.scandir")):
        seen.append((event, str(arguments[0])))
sys.addaudithook(hook)
"""
    tell = "\nfinally:\n    print(repr(seen), file=sys.stderr)\n"
    lines = ["    " + line for line in PROGRAM.splitlines()]
    done = process("--config", str(file), program=spy + "try:\n" + "\n".join(lines) + tell)
    assert done.returncode == 0 and "IPVS mode" in done.stdout
    opened = [what for what in eval(done.stderr) if not what[1].endswith((".py", ".pyc"))]
    assert opened == [("open", str(file))]
