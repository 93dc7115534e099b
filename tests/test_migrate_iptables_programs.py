"""The iptables programs of a node: which is found, and what becomes of one that fails, hangs, or prints too much."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from proxy.migrate import iptables_programs
from rules.objects import Family


def write_program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo broken >&2; exit 3", "failed with 3: broken"),
        ("exec sleep 60", "did not end"),
        ("cat /dev/zero", "more than"),
    ],
)
def test_a_program_that_fails_is_told(script: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_program(tmp_path, "iptables-nft-save", script)
    monkeypatch.setattr(iptables_programs, "LARGEST", 1 << 22)
    with pytest.raises(iptables_programs.ProgramError, match=words):
        iptables_programs.run([str(tmp_path / "iptables-nft-save")], patience=1.0 if "sleep" in script else 60.0)


def test_programs_that_hang_share_one_patience(tmp_path: Path) -> None:
    write_program(tmp_path, "iptables-nft-save", "exec sleep 60")
    patience = iptables_programs.Patience(0.6)
    for wanted in ("0.6 s", f"{iptables_programs.LEAST} s"):
        with pytest.raises(iptables_programs.ProgramError, match=f"did not end within {wanted}") as caught:
            patience.run([str(tmp_path / "iptables-nft-save")])
        assert "xtables.lock" in caught.value.remedy


def test_what_a_program_that_hangs_has_started_ends_too(tmp_path: Path) -> None:
    """The pipe that it holds is closed."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    write_program(tmp_path, "iptables-nft-save", f"sleep 60 >/proc/{os.getpid()}/fd/{writer} & wait")
    with pytest.raises(iptables_programs.ProgramError, match="did not end"):
        iptables_programs.run([str(tmp_path / "iptables-nft-save")], patience=0.5)
    os.close(writer)
    with open(reader, "rb") as file:
        assert select.select([file], [], [], 10.0)[0] and file.read() == b""  # an end, as nobody can write any more


def test_a_program_without_a_variant_in_its_name_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(iptables_programs, "PATH", str(tmp_path))
    write_program(tmp_path, "iptables-save", "echo 'iptables-save v1.8.9 (nf_tables)'")
    assert iptables_programs.find("nft", Family.IPV4) == str(tmp_path / "iptables-save")
    assert iptables_programs.find("legacy", Family.IPV4) == ""
    os.symlink(tmp_path / "iptables-save", tmp_path / "xtables-legacy-multi")
    write_program(tmp_path, "xtables-multi", "exit 1")
    (tmp_path / "ip6tables-save").symlink_to(tmp_path / "xtables-multi")
    assert iptables_programs.find("legacy", Family.IPV6) == str(tmp_path / "ip6tables-save")
    assert iptables_programs.find("nft", Family.IPV6) == ""
