"""What is no file among --manifests is named, and opened by nobody."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from proxy import snapshot
from proxy.manifest_names import no_files


def told(directory: Path) -> dict[str, str]:
    return {Path(one.what).name: one.cause for one in no_files(str(directory))}


def test_each_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "gone.yml").symlink_to("nowhere")
    (tmp_path / "round.json").symlink_to("round.json")
    (tmp_path / "inner").mkdir()
    (tmp_path / "named.yaml").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "sock.yaml"))
    (tmp_path / "device.yaml").symlink_to("/dev/null")
    assert told(tmp_path) == {
        "pipe.yaml": "it is a pipe, and no file",
        "gone.yml": "a link that leads nowhere",
        "inner": "it is a directory: only files of the directory itself are read",
        "named.yaml": "it is a directory: only files of the directory itself are read",
        "sock.yaml": "it is a socket, and no file",
        "device.yaml": "it is a device, and no file",
    }


def test_what_is_read_or_meant_by_nobody_is_not(tmp_path: Path) -> None:
    """A ConfigMap's volume: links through a hidden directory."""
    version = tmp_path / "..2026_11_30"
    version.mkdir()
    (version / "a.yaml").write_text("apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: b}\n")
    (tmp_path / "..data").symlink_to(version.name)
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes.txt").symlink_to("nowhere")
    assert told(tmp_path) == {}
    assert no_files(str(tmp_path / "nowhere")) == []


def test_the_rest_is_read_and_the_report_tells(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "broken.yaml").write_text("a: [")
    (tmp_path / "round.json").symlink_to("round.json")
    found = snapshot.from_manifests(str(tmp_path), lambda what, count: None, ["n"], None)
    named = {Path(one.what.removeprefix("manifest ")).name for one in found.unread if one.what.startswith("manifest /")}
    assert named == {"pipe.yaml", "broken.yaml", "round.json"}
