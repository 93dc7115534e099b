"""The runner of the virtual machine, with a stand-in for virtme-ng."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import pytest

from integration import vm
from proxy.errors import UserError
from tests.netns import Namespace
from tests.vm.only_kernels import asks_a_kernel


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with programs of these names; vng runs the command that it gets. A kernel is there too."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("vng", "virtme-run", "qemu-system-x86_64"):
        _program(directory / name, "true")
    _program(
        directory / "vng",
        'echo "vng $*" >&2; for last; do :; done; PATH=/usr/bin:/bin; eval "$(echo "$last" | sed "s/.*VM=1 //")"',
    )
    monkeypatch.setattr(sys, "executable", str(directory / "python"))
    monkeypatch.setenv("PATH", str(directory))
    for name in ("vmlinuz-6.1.0-9-amd64", "vmlinuz-6.1.0-57-amd64", "vmlinuz-6.12.3-amd64"):
        (tmp_path / name).touch()
    return tmp_path


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _kernel(programs: Path) -> str:
    return str(programs / "vmlinuz-6.1.*")


def test_output_and_exit_code_are_passed_on(programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = vm.main(["--kernel", _kernel(programs), "--", "sh", "-c", "echo 'it  works'; exit 3"])
    said = capfd.readouterr().out
    assert code == 3
    assert "it  works\n" in said
    assert f"--run {programs}/vmlinuz-6.1.0-57-amd64 " in said
    assert "--disable-kvm --cpus 1" in said and "--qemu-opts=-icount --qemu-opts=shift=0" in said
    vm.main(["--kernel", _kernel(programs), "--kvm", "--", "true"])
    said = capfd.readouterr().out
    assert "--disable-kvm" not in said and "-icount" not in said


def test_the_time_limit_ends_the_machine_and_all_that_belongs_to_it(
    programs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = programs / "pid"
    command = ["sh", "-c", f"echo $$ >{started}.new; mv {started}.new {started}; echo up; exec sleep 1000"]
    monkeypatch.setattr(time, "monotonic", lambda: 1e9 if started.exists() else 0.0)
    assert vm.run(command, kernel=_kernel(programs), seconds=1e6) == vm.EXIT_NO_ANSWER
    assert "not done after 1e+06 seconds" in capfd.readouterr().err
    monkeypatch.undo()
    deadline = time.monotonic() + 30
    while _is_alive(int(started.read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_alive(int(started.read_text()))


def _is_alive(pid: int) -> bool:
    """A zombie, which is there until its new parent looks, has no command line."""
    try:
        return bool(Path("/proc", str(pid), "cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [("vng", "pip install virtme-ng"), ("qemu-system-x86_64", "apt-get install qemu-system-x86")],
)
def test_what_is_missing_is_named_with_the_command_that_installs_it(
    programs: Path, capsys: pytest.CaptureFixture[str], missing: str, remedy: str
) -> None:
    (programs / "bin" / missing).unlink()
    assert vm.main(["--kernel", _kernel(programs), "--", "true"]) == 1
    assert remedy in capsys.readouterr().err


def test_no_kernel(programs: Path) -> None:
    with pytest.raises(UserError, match="apt-get install linux-image-amd64"):
        vm.run(["true"], kernel=str(programs / "vmlinuz-5.*"))


def test_a_command_that_is_too_long() -> None:
    with pytest.raises(UserError, match="put it into a script"):
        vm.script(["x" * 1000], Path("/"))


def test_what_the_machines_shell_runs() -> None:
    words = shlex.split(vm.script(["pytest", "-k", "a b"], Path("/a dir")))
    assert words[-4:] == [f"{vm.IN_VM}=1", "pytest", "-k", "a b"]
    assert "/a dir" in words


@pytest.fixture
def node(request: pytest.FixtureRequest) -> pytest.Item:
    """This very test."""
    item = request.node
    assert isinstance(item, pytest.Item)
    return item


@pytest.mark.parametrize("nothing", ["kernel", "fake"])
def test_who_asks_no_kernel_is_left_out(node: pytest.Item, nothing: str) -> None:
    assert not asks_a_kernel(node)


@pytest.mark.root
@pytest.mark.parametrize("whom", ["kernel", "fake"])
def test_who_asks_one_runs_there_but_for_the_fakes_tests(node: pytest.Item, whom: str) -> None:
    assert asks_a_kernel(node) is (whom == "kernel")


def test_so_does_who_has_a_namespace(node: pytest.Item, namespace: Namespace) -> None:
    assert asks_a_kernel(node)
