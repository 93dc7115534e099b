"""The configuration file is followed: what changes its meaning is noticed, however it is changed, and nothing else is."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy import config_watch
from proxy.config import Config, parse_config
from proxy.config_watch import ConfigWatch, places

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
PATIENCE = 20.0


class Watched:
    """A file that is followed. `loads` is released each time its content is looked at."""

    def __init__(self, path: Path, current: Config) -> None:
        self.path, self.loads, self.told = path, threading.Semaphore(0), threading.Semaphore(0)
        self.watch = ConfigWatch(str(path), current, self._load, self.told.release)
        self.watch.start()

    def _load(self, data: bytes) -> Config:
        try:
            return parse_config(data, str(self.path))
        finally:
            self.loads.release()

    def is_told(self) -> bool:
        return self.told.acquire(timeout=PATIENCE)


Watch = Callable[[Path], Watched]


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Follow this file, from what it says now, once that has been looked at."""
    made: list[Watched] = []

    def watch(path: Path) -> Watched:
        made.append(Watched(path, parse_config(path.read_bytes(), "")))
        assert made[-1].loads.acquire(timeout=PATIENCE)
        return made[-1]

    yield watch
    for each in made:
        each.watch.stop()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.conf"
    path.write_text(HEAD + "hostnameOverride: a\n")
    return path


def config_map(directory: Path, version: str, body: str) -> None:
    """As the kubelet writes a ConfigMap volume: a new directory, and one link that is exchanged."""
    (directory / version).mkdir(parents=True)
    (directory / version / "config.conf").write_text(HEAD + body)
    (directory / "..data_tmp").symlink_to(version)
    (directory / "..data_tmp").rename(directory / "..data")
    if not (directory / "config.conf").is_symlink():
        (directory / "config.conf").symlink_to("..data/config.conf")


def test_an_edit_in_place(watch: Watch, file: Path) -> None:
    watched = watch(file)
    with capture_logs() as logs:
        file.write_text(HEAD + "hostnameOverride: b\nnftables: {masqueradeAll: true}\n")
        assert watched.is_told()
    assert watched.watch.changed
    [event] = logs
    assert event["event"] == "config_file_changed"
    assert event["fields"] == ["hostnameOverride", "nftables.masqueradeAll"]


def test_another_file_in_its_place(watch: Watch, file: Path) -> None:
    watched = watch(file)
    (new := file.with_name("new")).write_text(HEAD)
    new.rename(file)
    assert watched.is_told()


def test_a_config_map_that_changes(watch: Watch, tmp_path: Path) -> None:
    config_map(tmp_path / "volume", "..2026_01", "")
    watched = watch(tmp_path / "volume" / "config.conf")
    config_map(tmp_path / "volume", "..2026_02", "# only a comment\n")
    assert watched.loads.acquire(timeout=PATIENCE)
    shutil.rmtree(tmp_path / "volume" / "..2026_01")
    config_map(tmp_path / "volume", "..2026_03", "oomScoreAdj: 1\n")
    assert watched.is_told()


def test_a_link_to_a_file_elsewhere(watch: Watch, file: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (link := tmp_path / "elsewhere" / "link").symlink_to("../config.conf")
    watched = watch(link)
    file.write_text(HEAD)
    assert watched.is_told()


def test_a_link_that_is_made_anew(watch: Watch, file: Path, tmp_path: Path) -> None:
    (other := tmp_path / "other").write_text(HEAD)
    (link := tmp_path / "link").symlink_to(file)
    watched = watch(link)
    with capture_logs() as logs:
        link.unlink()
        deadline = time.monotonic() + PATIENCE
        while not logs and time.monotonic() < deadline:
            time.sleep(0.001)
        link.symlink_to(other)
        assert watched.is_told()


def test_a_change_before_the_watch_began(file: Path) -> None:
    watched = Watched(file, Config())
    assert watched.is_told()
    watched.watch.stop()


@pytest.mark.parametrize(
    "content",
    [
        "hostnameOverride: a\n# a comment\n",
        'hostnameOverride: "a"\nunknown: 1\n',
        "hostnameOverride: a\nipvs: {scheduler: rr}\n",
        "hostnameOverride: a\nmode: ipvs\n",
        "hostnameOverride: a\nclusterCIDR: ''\n",
    ],
)
def test_other_words_for_the_same_are_no_change(watch: Watch, file: Path, content: str) -> None:
    watched = watch(file)
    file.write_text(HEAD + content)
    assert watched.loads.acquire(timeout=PATIENCE)
    file.write_text(HEAD + content + "hostnameOverride: b\n")
    assert watched.is_told()
    assert not watched.told.acquire(blocking=False)


def test_the_same_content_is_no_change(watch: Watch, file: Path) -> None:
    watched = watch(file)
    with capture_logs() as logs:
        os.utime(file)
        for content in (file.read_text(), HEAD):
            (new := file.with_name("new")).write_text(content)
            new.rename(file)
        assert watched.is_told()
    assert [event["event"] for event in logs] == ["config_file_changed"]
    assert watched.loads.acquire(blocking=False) and not watched.loads.acquire(blocking=False)  # of the last only


def test_a_file_that_is_wrong_is_told_and_not_used(watch: Watch, file: Path) -> None:
    watched = watch(file)
    with capture_logs() as logs:
        file.write_text(HEAD + "oomScoreAdj: many\n")
        assert watched.loads.acquire(timeout=PATIENCE)
        file.write_text(HEAD + "hostnameOverride: a\n")
        assert watched.loads.acquire(timeout=PATIENCE)
        file.write_text(HEAD + "hostnameOverride: b\n")
        assert watched.is_told()
    assert [event["event"] for event in logs] == ["config_file_wrong", "config_file_changed"]
    assert "oomScoreAdj is 'many'" in logs[0]["cause"]
    assert logs[0]["then"] == "the configuration in use stays"


def test_a_file_that_is_gone_is_told_once_and_missed_no_more_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, watch: Watch, file: Path
) -> None:
    looks = threading.Semaphore(0)

    def counted(path: Path) -> dict[Path, set[str]]:
        looks.release()
        return places(path)

    watched = watch(file)
    monkeypatch.setattr(config_watch, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(config_watch, "places", counted)
    with capture_logs() as logs:
        file.unlink()
        for _ in range(4):
            assert looks.acquire(timeout=PATIENCE)
        (new := file.with_name("new")).write_text(HEAD + "hostnameOverride: b\n")
        new.rename(file)
        assert watched.is_told()
    assert [event["event"] for event in logs] == ["config_file_lost", "config_file_changed"]
    assert logs[0]["cause"] == "No such file or directory"


def test_without_inotify_the_file_is_looked_at_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch, watch: Watch, file: Path
) -> None:
    def none_left() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(config_watch, "INotify", none_left)
    monkeypatch.setattr(config_watch, "POLL_SECONDS", 0.01)
    watched = watch(file)
    file.write_text(HEAD)
    assert watched.is_told()


def test_a_directory_exchanged_further_up_is_noticed_in_time(
    monkeypatch: pytest.MonkeyPatch, watch: Watch, tmp_path: Path
) -> None:
    monkeypatch.setattr(config_watch, "POLL_SECONDS", 0.01)
    for name in ("old", "new"):
        (tmp_path / name / "etc").mkdir(parents=True)
        (tmp_path / name / "etc" / "config.conf").write_text(HEAD + f"hostnameOverride: {name}\n")
    watched = watch(tmp_path / "old" / "etc" / "config.conf")
    (tmp_path / "old").rename(tmp_path / "older")
    (tmp_path / "new").rename(tmp_path / "old")
    assert watched.is_told()


def test_it_stops_without_a_change(watch: Watch, file: Path) -> None:
    watched = watch(file)
    watched.watch.stop()
    watched.watch.stop = lambda: None  # type: ignore[method-assign]
    assert not watched.watch.changed
    assert not any(thread.name == "watch-config" for thread in threading.enumerate())


def test_the_places_that_decide(tmp_path: Path) -> None:
    config_map(tmp_path / "volume", "..2026_01", "")
    (tmp_path / "way").symlink_to("volume")
    root = tmp_path.resolve()
    assert places(root / "way" / "config.conf") == {
        root: {"way"},
        root / "volume": {"config.conf", "..data"},
        root / "volume" / "..2026_01": {"config.conf"},
    }
    (tmp_path / "loop").symlink_to("loop")
    assert places(root / "loop") == {root: {"loop"}}
    assert places(root / "volume" / ".." / "nothing" / "here") == {root / "nothing": {"here"}}
