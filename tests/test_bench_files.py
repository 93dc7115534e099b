"""What a benchmark leaves behind when disks are full or cannot be written, when nobody reads, and on a machine that has
other things to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench import __main__ as bench
from bench import files, others
from bench.machine import CHECKOUT
from bench.options import Options, parse
from proxy.errors import UserError
from tests.bench_documents import document
from tests.test_bench_output import SCHEMA


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a run measures, in no time."""
    made = document() | {"failures": []}
    monkeypatch.setattr(bench, "measure", lambda options: made)
    monkeypatch.setattr(bench, "require", lambda: None)
    return made


def test_results_go_to_the_directory_that_is_made(measured: dict[str, Any], tmp_path: Path) -> None:
    assert bench.main(["--output", str(tmp_path / "a/b")]) == 0
    assert json.loads((tmp_path / "a/b/bench.json").read_text()) == measured
    assert not list(tmp_path.glob("**/*.new"))


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--output .*file: results cannot be written there: File exists"):
        files.prepare(tmp_path / "file")
    with pytest.raises(UserError, match="cannot be written there"):
        files.prepare(tmp_path / "file/in it")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system: run as root")
@pytest.mark.parametrize("mount", ["size=64k", "ro"])
def test_a_disk_that_is_full_or_read_only_is_told_before_anything_is_measured(mount: str, tmp_path: Path) -> None:
    command = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'
    argv = [sys.executable, "-m", "bench", "--quick", "--sizes", "5x2", "--output", str(tmp_path)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, "sh", mount, str(tmp_path), *argv],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1 and not done.stdout, done.stderr
    assert (
        done.stderr.startswith(f"bench: --output {tmp_path}: results cannot be written there")
        and "[1/" not in done.stderr
    )


def test_what_cannot_be_written_in_the_end_is_shown_and_put_elsewhere(
    tmp_path: Path, measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    output = tmp_path / "out"

    def measure(options: Options) -> dict[str, Any]:
        output.rename(tmp_path / "away")  # a disk that is pulled, a directory that somebody removes
        return measured

    monkeypatch.setattr(bench, "measure", measure)
    assert bench.main(["--output", str(output)]) == 1
    said = capsys.readouterr()
    assert "A gang of 512 pods" in said.out
    assert f"{output / 'bench.json'} cannot be written: No such file" in said.err and "Traceback" not in said.err
    [file] = (tmp_path / "elsewhere").iterdir()
    assert str(file) in said.out and json.loads(file.read_text()) == measured


def test_an_earlier_result_stays_when_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text("before")
    (tmp_path / "bench.json.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        files.write(path, "after")
    assert path.read_text() == "before"


def test_nobody_has_to_read_the_tables(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "bench.json").write_text(json.dumps(document() | {"failures": []}))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--draw", str(tmp_path / "bench.json"), "--output", str(tmp_path)],
        cwd=CHECKOUT, stdout=writer, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "") and (tmp_path / "start.svg").exists()


def test_tables_are_shown_where_letters_are_few(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(json.dumps(document()))
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--draw", str(tmp_path / "bench.json"), "--output", str(tmp_path)],
        cwd=CHECKOUT, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}, text=True,
    )  # fmt: skip
    assert done.stderr == "" and "1,000 ? 10" in done.stdout


def test_an_interrupt_while_plots_are_drawn_is_no_traceback(
    tmp_path: Path, measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "show", interrupted)
    assert bench.main(["--output", str(tmp_path)]) == 130
    assert (tmp_path / "bench.json").exists()


def test_a_layout_that_cannot_be_loaded_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "available", lambda name: not name.startswith("iptables"))
    monkeypatch.setattr(bench.Run, "layouts", lambda self: None)
    monkeypatch.setattr(bench.Run, "control", lambda self: None)
    found = bench.measure(parse(["--sizes", "1x1", "--parts", "layouts"]))
    assert [text.split(" is left out")[0] for text in found["warnings"] if "left out" in text] == [
        "the layout iptables-nft",
        "the layout iptables-legacy",
    ]
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA)
    assert not [text for text in bench.measure(parse(["--parts", "control"]))["warnings"] if "left out" in text]


def test_what_others_use_is_what_is_used_without_us() -> None:
    stat = "cpu  1000 0 500 8000 100 0 50 350 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    before = others.parse(stat, 3.0)
    after = others.parse("cpu  1400 0 600 8300 100 0 50 550 0 0\n", 6.0)  # 10 s: 5 used, 3 of them ours; 2 stolen
    assert others.between(before, after) == {"cpu_percent": 20.0, "stolen_percent": 20.0}
    assert others.between(before, before) == {"cpu_percent": 0.0, "stolen_percent": 0.0}
    assert others.warning({"cpu_percent": 9.0, "stolen_percent": 1.0}) == ""
    assert "23 % of the processors" in others.warning({"cpu_percent": 23.4, "stolen_percent": 0.0})
    jsonschema.validate(document() | {"others": others.between(before, after)}, SCHEMA)


def test_what_our_children_use_is_ours() -> None:
    before = others.clocks()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    after = others.clocks()
    assert after.own - before.own >= 0.3 and after.all > before.all
