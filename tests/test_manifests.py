"""The manifests source against real files and real inotify.

Where a test must know that the follower has seen something that causes no event, it renames a sentinel into place
afterwards and waits for that: inotify keeps the order.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy import manifest_directory, manifest_parse, manifests, model
from proxy.errors import SourceError
from proxy.events import Delete, Event, Failed, Inbox, Put, Replace
from proxy.manifest_index import ManifestIndex
from proxy.manifest_watch import DirectoryWatch
from proxy.manifests import ManifestSource

Key = tuple[str, str, str]
DEADLINE = 20  # seconds that a busy machine may need for what takes a millisecond
WEB: Key = ("Service", "default", "web")
API: Key = ("Service", "default", "api")


def service(name: str = "web", ip: str = "10.96.0.1", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, **metadata},
        "spec": {"clusterIP": ip, "ports": [{"port": 80}]},
    }


def text(*objects: Any) -> str:
    return yaml.safe_dump_all(objects)


def put_file(path: Path, content: str | bytes) -> None:
    """As a careful writer does: under another name, then renamed into place."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.rename(path)


class World:
    """A source, and the objects that its events add up to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.inbox = Inbox()
        self.problems: list[tuple[str, str, str]] = []
        self.source = ManifestSource(directory, self.inbox, lambda *problem: self.problems.append(problem))
        self.objects: dict[Key, model.KubeObject] = {}
        self._numbers = itertools.count()

    def apply(self, events: list[Event]) -> list[Event]:
        for event in events:
            match event:
                case Replace(kind, objects):
                    self.objects = {key: obj for key, obj in self.objects.items() if key[0] != kind}
                    self.objects |= {manifest_parse.key_of(obj): obj for obj in objects}
                case Put(obj):
                    self.objects[manifest_parse.key_of(obj)] = obj
                case Delete(kind, namespace, name):
                    del self.objects[kind, namespace, name]  # KeyError: a Delete of what is not there
                case Failed(error):
                    raise error
        return events

    def load(self) -> list[Event]:
        self.source.load()
        return self.apply(self.inbox.take(timeout=0))

    def start(self) -> list[Event]:
        self.source.start()
        return self.apply(self.inbox.take(timeout=0))

    def take(self) -> list[Event]:
        """The next events: at least one."""
        events = self.inbox.take(timeout=DEADLINE)
        assert events, "nothing came"
        return self.apply(events)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline, f"it did not come to that: {self.objects.keys()} {self.problems}"
            self.apply(self.inbox.take(timeout=0.1))

    def settle(self) -> list[Event]:
        """Wait until all that was done before is handled; gives its events."""
        name = f"sentinel-{next(self._numbers)}"
        path = self.directory / f"{name}.json"
        put_file(path, json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))
        seen: list[Event] = []
        while ("Node", "", name) not in self.objects:
            seen += self.take()
        path.unlink()
        while ("Node", "", name) in self.objects:
            seen += self.take()
        return [event for event in seen if "sentinel-" not in repr(event)]

    def names(self) -> set[str]:
        return {name for _, _, name in self.objects}

    def ip(self, key: Key = WEB) -> str:
        obj = self.objects[key]
        assert isinstance(obj, model.Service)
        return obj.spec.cluster_ip

    def reported(self, problem: str) -> list[tuple[str, str]]:
        return [(what, reason) for kind, what, reason in self.problems if kind == problem]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    directory = tmp_path / "manifests"
    directory.mkdir()
    world = World(directory)
    yield world
    world.source.stop()


# Reading the directory


def test_load_puts_one_replace_per_kind_in_one_put(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    put_file(world.directory / "a.yaml", text(service("web"), service("api")))
    calls: list[tuple[Event, ...]] = []
    monkeypatch.setattr(world.inbox, "put", lambda *events: calls.append(events))
    world.source.load()
    (events,) = calls
    kinds = {event.kind: len(event.objects) for event in events if isinstance(event, Replace)}
    assert kinds == {"Service": 2, "EndpointSlice": 0, "Node": 0, "ServiceCIDR": 0}
    assert len(events) == 4


def test_only_manifests_count(world: World) -> None:
    for name in (".hidden.yaml", "a.yaml~", "a.yaml.tmp", ".a.yaml.swp", "#a.yaml#", "4913", "a.txt", "a.yaml.bak"):
        (world.directory / name).write_text("not: [a manifest")
    (world.directory / "sub.yaml").mkdir()
    (world.directory / "sub.yaml" / "a.yaml").write_text(text(service("sub")))
    os.mkfifo(world.directory / "pipe.yaml")
    (world.directory / "dangling.yaml").symlink_to("nowhere")
    put_file(world.directory / "a.yml", text(service("web")))
    world.load()
    assert world.names() == {"web"}
    assert not world.problems


def test_ignored_kinds_are_named_once(world: World) -> None:
    for name in ("a", "b"):
        put_file(world.directory / f"{name}.yaml", text({"apiVersion": "apps/v1", "kind": "Deployment"}))
    with capture_logs() as logs:
        world.load()
    assert [entry["kinds"] for entry in logs if entry["event"] == "manifest_kinds_ignored"] == [["apps/v1 Deployment"]]
    assert not world.problems


@pytest.mark.parametrize("method", ["load", "start"])
def test_a_directory_that_cannot_be_used_is_a_source_error(tmp_path: Path, method: str) -> None:
    (tmp_path / "file").write_text("")
    for path, cause in ((tmp_path / "missing", "no such directory"), (tmp_path / "file", "not a directory")):
        with pytest.raises(SourceError) as caught:
            getattr(ManifestSource(path, Inbox()), method)()
        assert caught.value.what == str(path)
        assert cause in caught.value.cause
        assert caught.value.remedy


@pytest.mark.parametrize("method", ["load", "start"])
def test_a_directory_without_permission_is_a_source_error(world: World, monkeypatch: Any, method: str) -> None:
    def refuse(*args: Any, **kwargs: Any) -> int:
        raise PermissionError(13, "Permission denied")

    descriptors = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "open", refuse)  # root may read anything
    with pytest.raises(SourceError, match=r"manifests: permission denied \(let this process"):
        getattr(world.source, method)()
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_two_thousand_files(world: World) -> None:
    for number in range(2000):
        (world.directory / f"{number}.json").write_text(json.dumps(service(f"s{number}")))
    world.start()
    assert len(world.objects) == 2000
    put_file(world.directory / "7.json", json.dumps(service("s7", ip="10.96.9.9")))
    (event,) = world.take()
    assert isinstance(event, Put)
    assert world.ip(("Service", "default", "s7")) == "10.96.9.9"


def test_one_change_reads_one_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        put_file(world.directory / f"{number}.yaml", text(service(f"s{number}")))
    world.start()
    opened: list[str] = []
    real = os.open

    def counting(path: Any, *args: Any, **kwargs: Any) -> int:
        opened.append(os.path.basename(os.fspath(path)))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", counting)
    monkeypatch.setattr(os, "listdir", lambda fd: pytest.fail("listed"))
    put_file(world.directory / "7.yaml", text(service("s7", ip="10.96.9.9")))
    world.take()
    assert [name for name in opened if name.endswith(".yaml") and not name.startswith(".")] == ["7.yaml"]


# Following


def test_renamed_into_place_written_in_place_and_removed(world: World) -> None:
    world.start()
    path = world.directory / "a.yaml"
    put_file(path, text(service("web", ip="10.96.0.1")))
    assert [type(event) for event in world.take()] == [Put]
    path.write_text(text(service("web", ip="10.96.0.2")))
    world.until(lambda: world.ip() == "10.96.0.2")
    path.rename(world.directory / "a.txt")
    assert world.take() == [Delete(*WEB)]
    (world.directory / "a.txt").rename(path)
    assert [type(event) for event in world.take()] == [Put]
    path.unlink()
    assert world.take() == [Delete(*WEB)]
    assert not world.problems


def test_a_file_is_not_read_before_it_is_closed(world: World) -> None:
    put_file(world.directory / "a.yaml", text(service("web")))
    world.start()
    with (
        (world.directory / "a.yaml").open("w") as changed,
        (world.directory / "b.yaml").open("w") as new,
    ):
        for file, name in ((changed, "web"), (new, "api")):
            file.write(text(service(f"half-{name}")) + "---\n")
            file.flush()
            os.fchmod(file.fileno(), 0o600)
            file.write(text(service(name, ip="10.96.0.9")))
        assert world.settle() == []
    world.until(lambda: {WEB, API} <= world.objects.keys() and world.ip() == "10.96.0.9")
    assert not world.problems


def test_links_are_read_when_made(world: World, tmp_path: Path) -> None:
    (tmp_path / "target").write_text(text(service("web")))
    (tmp_path / "other").write_text(text(service("api")))
    world.start()
    (world.directory / "a.yaml").symlink_to(tmp_path / "target")
    (world.directory / "b.yaml").hardlink_to(tmp_path / "other")
    world.until(lambda: world.names() == {"web", "api"})


def test_only_what_changed_in_a_file_is_put(world: World) -> None:
    path = world.directory / "a.yaml"
    put_file(path, text(service("web"), service("api"), service("old")))
    world.start()
    put_file(path, text(service("new"), service("api"), service("web", ip="10.96.0.2")) + "# a comment\n")
    events = world.take()
    assert {
        type(event).__name__ + manifest_parse.key_of(event.obj)[2] for event in events if isinstance(event, Put)
    } == {
        "Putweb",
        "Putnew",
    }
    assert [event for event in events if isinstance(event, Delete)] == [Delete("Service", "default", "old")]
    put_file(path, "# other comment\n" + path.read_text())
    path.touch()
    assert world.settle() == []


def paused_follower(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Start, but let the follower see nothing before the returned function is called: what is done is one batch."""
    gate = threading.Event()
    real = DirectoryWatch.wait

    def wait(self: DirectoryWatch, timeout_ms: int | None = None) -> bool:
        gate.wait(60)
        return real(self, timeout_ms)

    monkeypatch.setattr(DirectoryWatch, "wait", wait)
    world.start()
    return gate.set


def test_removed_and_begun_again_is_read_when_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world.directory / "a.yaml"
    put_file(path, text(service("web")))
    go = paused_follower(world, monkeypatch)
    path.unlink()
    with path.open("w") as file:
        file.write(text(service("half")) + "---\n")
        file.flush()
        go()
        world.settle()
        assert not world.objects
        file.write(text(service("web")))
    world.until(lambda: world.names() == {"half", "web"})


def test_a_batch_is_one_put(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        put_file(world.directory / f"{name}.yaml", text(service(name)))
    go = paused_follower(world, monkeypatch)
    calls: list[tuple[Event, ...]] = []
    real = world.inbox.put

    def put(*events: Event) -> None:
        calls.append(events)
        real(*events)

    monkeypatch.setattr(world.inbox, "put", put)
    (world.directory / "a.yaml").unlink()
    put_file(world.directory / "b.yaml", text(service("b", ip="10.96.0.2")))
    put_file(world.directory / "d.yaml", text(service("d")))
    (world.directory / "c.yaml").rename(world.directory / "e.yaml")  # its object stays what it was
    put_file(world.directory / "f.yaml", text(service("f")))
    (world.directory / "f.yaml").unlink()  # came and went
    go()
    world.take()
    assert world.names() == {"b", "c", "d"}
    assert [len(events) for events in calls] == [3]
    assert world.settle() == []


def overflow(directory: Path) -> None:
    """Fill the queue, so that what follows is not heard of."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 50_000:
        pytest.skip(f"a queue of {limit} events takes too long to fill")
    noise = [directory / "noise-0", directory / "noise-1"]  # alternating, so that no two are merged
    for path in noise:
        path.touch()
    for number in range(limit):
        os.utime(noise[number % 2])


def test_overflow_reads_everything_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        put_file(world.directory / f"{name}.yaml", text(service(name)))
    go = paused_follower(world, monkeypatch)
    overflow(world.directory)
    (world.directory / "a.yaml").unlink()
    put_file(world.directory / "b.yaml", text(service("b", ip="10.96.0.2")))
    put_file(world.directory / "d.yaml", text(service("d")))
    with capture_logs() as logs:
        go()
        events = world.take()
    assert "manifest_events_missed" in {entry["event"] for entry in logs}
    assert len(events) == 3
    assert world.names() == {"b", "c", "d"}


def test_overflow_may_hide_another_directory(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = paused_follower(world, monkeypatch)
    overflow(world.directory)
    world.directory.rename(tmp_path / "old")
    world.directory.mkdir()
    put_file(world.directory / "a.yaml", text(service("a")))
    go()
    world.until(lambda: world.names() == {"a"})
    put_file(world.directory / "b.yaml", text(service("b")))
    world.until(lambda: world.names() == {"a", "b"})


def test_a_file_that_is_as_before_is_not_parsed_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    put_file(world.directory / "a.yaml", text(service("web")))
    put_file(world.directory / "b.yaml", "b: [")
    world.load()
    monkeypatch.setattr(manifest_directory, "parse", lambda name, data: pytest.fail(f"parsed {name}"))
    world.load()
    assert world.names() == {"web"}
    assert len(world.problems) == 1


def test_what_changes_during_the_scan_is_not_missed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        put_file(world.directory / f"{name}.yaml", text(service(name, ip="10.96.0.1")))
    raced: list[bool] = []
    real = manifest_directory._read_file

    def read_file(directory: int, name: str) -> bytes | None:
        data = real(directory, name)
        if name == "a.yaml" and not raced:
            raced.append(True)
            put_file(world.directory / "a.yaml", text(service("a", ip="10.96.0.2")))  # after it was read
            put_file(world.directory / "b.yaml", text(service("b", ip="10.96.0.2")))  # before it is
            (world.directory / "c.yaml").unlink()
            put_file(world.directory / "0.yaml", text(service("new")))  # after the listing
        return data

    monkeypatch.setattr(manifest_directory, "_read_file", read_file)
    world.start()
    assert world.names() == {"a", "b", "new"}  # in the first picture already
    assert {world.ip(("Service", "default", name)) for name in ("a", "b")} == {"10.96.0.2"}
    assert world.settle() == []


def test_stop_ends_the_thread_and_leaves_no_descriptor(world: World) -> None:
    before = len(os.listdir("/proc/self/fd"))
    world.start()
    world.source.stop()
    world.source.stop()
    assert len(os.listdir("/proc/self/fd")) == before
    put_file(world.directory / "a.yaml", text(service("web")))
    assert world.inbox.take(timeout=0) == []
    world.start()  # and again
    assert WEB in world.objects


# ConfigMap volumes


class ConfigMapVolume:
    """Writes a directory the way kubelet does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._versions = itertools.count()

    def write(self, files: dict[str, str]) -> None:
        version = self.directory / f"..2026_{next(self._versions)}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_text(content)
        old = self.directory / "..data"
        old_version = old.resolve() if old.exists() else None
        (self.directory / "..data_tmp").symlink_to(version.name)
        (self.directory / "..data_tmp").rename(old)
        for name in files:
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")
        for path in list(self.directory.iterdir()):
            if not path.name.startswith("..") and path.name not in files:
                path.unlink()
        if old_version:
            shutil.rmtree(old_version)


def test_configmap_volume(world: World) -> None:
    volume = ConfigMapVolume(world.directory)
    volume.write({"a.yaml": text(service("web")), "b.yaml": text(service("api"))})
    world.start()
    assert world.names() == {"web", "api"}
    volume.write({"a.yaml": text(service("web", ip="10.96.0.2")), "b.yaml": text(service("api"))})
    (event,) = world.take()
    assert isinstance(event, Put)
    assert world.ip() == "10.96.0.2"
    volume.write({"a.yaml": text(service("web", ip="10.96.0.2")), "c.yaml": text(service("new"))})
    world.until(lambda: world.names() == {"web", "new"})
    assert not world.problems


def test_a_swap_during_the_scan_mixes_no_versions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """web moves from b to a: read half before and half after the swap, it would seem to be gone."""
    volume = ConfigMapVolume(world.directory)
    volume.write({"a.yaml": "# nothing", "b.yaml": text(service("web"))})
    swapped: list[bool] = []
    real = manifest_directory._read_file

    def read_file(directory: int, name: str) -> bytes | None:
        data = real(directory, name)
        if name == "a.yaml" and not swapped:
            swapped.append(True)
            volume.write({"a.yaml": text(service("web")), "b.yaml": "# nothing"})
        return data

    monkeypatch.setattr(manifest_directory, "_read_file", read_file)
    world.load()
    assert world.names() == {"web"}


# Objects in two places


def test_the_first_file_by_name_wins_and_the_other_takes_over(world: World) -> None:
    put_file(world.directory / "b.yaml", text(service("web", ip="10.96.0.2")))
    put_file(world.directory / "c.yaml", text(service("web", ip="10.96.0.3"), service("api")))
    with capture_logs() as logs:
        world.start()
    assert world.ip() == "10.96.0.2"
    (entry,) = [entry for entry in logs if entry["event"] == "manifest_object_duplicate"]
    assert (entry["object"], Path(entry["used"]).name, Path(entry["ignored"]).name) == (
        "Service default/web",
        "b.yaml",
        "c.yaml",
    )
    put_file(world.directory / "c.yaml", text(service("web", ip="10.96.0.4"), service("api", ip="10.96.1.1")))
    world.take()
    assert world.ip() == "10.96.0.2"
    assert len(world.reported("duplicate_object")) == 1
    put_file(world.directory / "a.yaml", text(service("web", ip="10.96.0.1")))
    world.until(lambda: world.ip() == "10.96.0.1")
    assert [what for what, _ in world.reported("duplicate_object")] == ["Service default/web"] * 2  # now b, too
    (world.directory / "a.yaml").unlink()
    assert [type(event) for event in world.take()] == [Put]
    assert world.ip() == "10.96.0.2"
    (world.directory / "b.yaml").unlink()
    assert [type(event) for event in world.take()] == [Put]
    assert world.ip() == "10.96.0.4"
    (world.directory / "c.yaml").unlink()
    assert all(type(event) is Delete for event in world.take())


def test_twice_in_one_file_the_first_counts(world: World) -> None:
    path = world.directory / "a.yaml"
    put_file(path, text(service("web", ip="10.96.0.1"), service("web", ip="10.96.0.2")))
    world.start()
    assert world.ip() == "10.96.0.1"
    put_file(path, text(service("web", ip="10.96.0.3"), service("web", ip="10.96.0.2")))
    world.until(lambda: world.ip() == "10.96.0.3")
    assert [what for what, _ in world.reported("duplicate_object")] == ["Service default/web"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.dictionaries(st.sampled_from("xy"), st.integers(0, 1)))))
def test_index_gives_the_net_effect_of_any_sequence(steps: list[tuple[str, dict[str, int]]]) -> None:
    index = ManifestIndex()
    files: dict[str, dict[Key, model.KubeObject]] = {}
    seen: dict[Key, model.KubeObject] = {}
    for number, (file, held) in enumerate(steps):
        files[file] = {
            ("Node", "", name): model.Node(model.ObjectMeta(name=name, uid=str(uid))) for name, uid in held.items()
        }
        index.set(file, files[file])
        if number % 2:
            continue
        for event in index.take().events:
            if isinstance(event, Put):
                key = manifest_parse.key_of(event.obj)
                assert seen.get(key) != event.obj
                seen[key] = event.obj
            else:
                del seen[event.kind, event.namespace, event.name]
        expected: dict[Key, model.KubeObject] = {}
        for name in sorted(files):
            expected = files[name] | expected
        assert seen == expected
        assert {manifest_parse.key_of(obj) for objects in index.objects().values() for obj in objects} == set(expected)


# Faults


@pytest.mark.parametrize(("content", "cause"), [("a: 1\nb: c: d", "line 2, column 5"), (b"\xff", "line 1, column 1")])
def test_broken_then_mended(world: World, content: str | bytes, cause: str) -> None:
    path = world.directory / "a.yaml"
    put_file(path, text(service("web")))
    put_file(world.directory / "b.yaml", text(service("api")))
    world.start()
    with capture_logs() as logs:
        put_file(path, content)
        assert world.settle() == []
        path.touch()
        put_file(path, content)  # the same again is no news
        world.settle()
    (entry,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert (entry["event"], entry["path"]) == ("manifest_broken", str(path))
    assert cause in entry["cause"]
    assert entry["remedy"]
    assert WEB in world.objects
    put_file(path, "still: [broken")
    world.settle()
    assert [what for what, _ in world.reported("broken_file")] == [str(path)] * 2
    with capture_logs() as logs:
        put_file(path, text(service("web")))
        assert world.settle() == []  # as it was before
    assert [entry["path"] for entry in logs if entry["event"] == "manifest_mended"] == [str(path)]
    put_file(path, "broken: [")
    world.settle()
    path.unlink()
    assert world.take() == [Delete(*WEB)]


def test_broken_from_the_beginning(world: World) -> None:
    put_file(world.directory / "a.yaml", "a: [")
    put_file(world.directory / "b.yaml", text(service("api")))
    world.start()
    assert world.names() == {"api"}
    assert len(world.reported("broken_file")) == 1
    put_file(world.directory / "a.yaml", text(service("web")))
    world.take()
    assert world.names() == {"api", "web"}


def test_too_large(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_directory, "MAX_BYTES", 1000)
    put_file(world.directory / "a.yaml", text(service("web")) + "#" * 1000)
    put_file(world.directory / "b.yaml", text(service("api")))
    world.load()
    assert world.names() == {"api"}
    ((what, reason),) = world.reported("broken_file")
    assert what.endswith("a.yaml")
    assert "larger than" in reason


def test_a_real_file_over_the_limit_is_not_read(world: World) -> None:
    with (world.directory / "a.yaml").open("wb") as file:
        file.truncate(manifest_parse.MAX_BYTES + 1)
    world.load()
    assert "larger than 32 MiB" in world.reported("broken_file")[0][1]


def test_empty_file_yields_nothing_and_a_warning_once(world: World) -> None:
    path = world.directory / "a.yaml"
    put_file(path, text(service("web")))
    world.start()
    with capture_logs() as logs:
        put_file(path, "")
        assert world.take() == [Delete(*WEB)]
        put_file(path, "# nothing\n")
        world.settle()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("manifest_empty", "warning")]
    assert len(world.reported("empty_file")) == 1


def test_a_bad_object_keeps_its_last_good_version(world: World) -> None:
    path = world.directory / "a.yaml"
    put_file(path, text(service("web", ip="10.96.0.1"), service("api", ip="10.96.1.1")))
    world.start()
    bad = service("web")
    bad["spec"]["ports"] = "eighty"
    for ip in ("10.96.1.2", "10.96.1.3"):
        put_file(path, text(bad, service("api", ip=ip), {**bad, "metadata": {"name": "never-good"}}))
        world.until(lambda ip=ip: world.ip(API) == ip)  # type: ignore[misc]
    assert world.ip() == "10.96.0.1"
    assert sorted(what for what, _ in world.reported("bad_object")) == [
        "Service default/never-good",
        "Service default/web",
    ]
    assert all("ports" in reason for _, reason in world.reported("bad_object"))
    put_file(path, text(service("api", ip="10.96.1.3")))
    assert world.take() == [Delete(*WEB)]


@pytest.mark.parametrize(
    "nonsense",
    ["hello", "knid: Service\napiVersion: v1", "apiVersion: v1\nkind: Service\nmetadata: {name: 1.10}\nspec: {}"],
)
def test_a_nameless_bad_object_may_be_any_of_the_file(world: World, nonsense: str) -> None:
    path = world.directory / "a.yaml"
    put_file(path, text(service("web"), service("api", ip="10.96.1.1")))
    world.start()
    put_file(path, f"{nonsense}\n---\n{text(service('api', ip='10.96.1.2'))}")
    world.until(lambda: world.ip(API) == "10.96.1.2")
    assert WEB in world.objects
    ((what, _),) = world.reported("bad_object")
    assert "document 1" in what
    put_file(path, nonsense)
    assert world.settle() == []
    assert {WEB, API} == world.objects.keys()


def test_unreadable_file_keeps_its_objects_until_readable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world.directory / "a.yaml"
    put_file(path, text(service("web", ip="10.96.0.1")))
    put_file(world.directory / "b.yaml", text(service("api")))
    real = os.open

    def as_a_user(name: Any, *args: Any, **kwargs: Any) -> int:
        """Root may read anything: refuse what a user could not open."""
        if "dir_fd" in kwargs and not os.stat(name, dir_fd=kwargs["dir_fd"]).st_mode & 0o400:
            raise PermissionError(13, "Permission denied", name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(os, "open", as_a_user)
    world.start()
    temporary = world.directory / "new"
    temporary.write_text(text(service("web", ip="10.96.0.2")))
    temporary.chmod(0)
    temporary.rename(path)
    world.settle()
    assert world.ip() == "10.96.0.1"
    ((what, reason),) = world.reported("broken_file")
    assert (what, reason) == (str(path), "cannot be read: Permission denied")
    path.chmod(0o200)
    world.settle()
    assert len(world.problems) == 1
    path.chmod(0o600)
    world.take()
    assert world.ip() == "10.96.0.2"


def test_a_bug_in_one_step_is_logged_and_survived(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.start()
    real = manifest_directory.ManifestDirectory.update
    faults = iter([ZeroDivisionError("a bug")])

    def update(self: manifest_directory.ManifestDirectory, names: Any) -> None:
        for fault in faults:
            raise fault
        real(self, names)

    monkeypatch.setattr(manifest_directory.ManifestDirectory, "update", update)
    with capture_logs() as logs:
        put_file(world.directory / "a.yaml", text(service("web")))
        world.take()
    assert WEB in world.objects
    assert "manifests_unexpected" in {entry["event"] for entry in logs}
    put_file(world.directory / "b.yaml", text(service("api")))
    world.take()
    assert API in world.objects


def test_a_bug_that_stays_ends_in_failed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.start()

    def bug(*args: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(manifest_directory.ManifestDirectory, "update", bug)
    monkeypatch.setattr(manifest_directory.ManifestDirectory, "rescan", bug)
    put_file(world.directory / "a.yaml", text(service("web")))
    (event,) = world.inbox.take(timeout=DEADLINE)
    assert isinstance(event, Failed)
    assert isinstance(event.error, ZeroDivisionError)


# The directory itself


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "RETRY_MS", 20)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_directory_gone_and_back(world: World, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_file(world.directory / "a.yaml", text(service("web")))
    put_file(world.directory / "b.yaml", text(service("api", ip="10.96.1.1")))
    go = paused_follower(world, monkeypatch)
    if how == "moved":
        world.directory.rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(world.directory)
    with capture_logs() as logs:
        go()
        world.until(lambda: bool(world.reported("directory_lost")))
    assert world.inbox.take(timeout=0.1) == []
    (entry,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert entry["path"] == str(world.directory)
    assert how in entry["cause"]
    new = tmp_path / "new"
    new.mkdir()
    put_file(new / "b.yaml", text(service("api", ip="10.96.1.2")))
    put_file(new / "c.yaml", text(service("other")))
    new.rename(world.directory)
    world.until(lambda: world.names() == {"api", "other"} and world.ip(API) == "10.96.1.2")
    put_file(world.directory / "d.yaml", text(service("later")))  # followed again
    world.until(lambda: "later" in world.names())
    assert len(world.reported("directory_lost")) == 1


@pytest.mark.usefixtures("impatient")
def test_directory_gone_twice_and_its_parent_too(world: World, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    (outer / "inner").mkdir(parents=True)
    put_file(outer / "inner" / "a.yaml", text(service("web")))
    nested = World(outer / "inner")
    nested.start()
    try:
        (outer / "inner").rename(tmp_path / "kept")
        nested.until(lambda: len(nested.reported("directory_lost")) == 1)
        outer.rmdir()
        outer.mkdir()
        (tmp_path / "kept").rename(outer / "inner")
        put_file(outer / "inner" / "b.yaml", text(service("api")))
        nested.until(lambda: nested.names() == {"web", "api"})
    finally:
        nested.source.stop()


def test_another_directory_in_its_place_is_taken_at_once(world: World, tmp_path: Path) -> None:
    """Deployments switch a link from one release to the next."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        put_file(tmp_path / name / "a.yaml", text(service(name), service("web")))
    link = tmp_path / "current"
    link.symlink_to("one")
    linked = World(link)
    linked.start()
    try:
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").rename(link)
        linked.take()
        assert linked.names() == {"two", "web"}
        put_file(tmp_path / "two" / "b.yaml", text(service("api")))
        linked.take()
        assert linked.names() == {"two", "web", "api"}
        assert not linked.problems
    finally:
        linked.source.stop()


@pytest.mark.root
@pytest.mark.usefixtures("impatient")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts a file system")
def test_unmounted_keeps_the_objects_until_mounted_again(world: World) -> None:
    """The bare mount point is an empty directory, but does not mean that all Services are gone."""

    def mount() -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "manifests-test", world.directory], check=True)

    def unmount() -> None:
        subprocess.run(["umount", world.directory], check=True)

    mount()
    try:
        put_file(world.directory / "a.yaml", text(service("web")))
        world.start()
        unmount()
        world.until(lambda: bool(world.reported("directory_lost")))
        assert world.inbox.take(timeout=0.1) == []
        mount()
        world.until(lambda: world.names() == set())  # this one is really empty
        put_file(world.directory / "b.yaml", text(service("api")))
        world.until(lambda: world.names() == {"api"})
    finally:
        unmount()


# Any sequence of file operations

_NAMES = st.sampled_from(["a.yaml", "b.yml", "c.json", "d.yaml"])
_CONTENTS = st.one_of(
    st.lists(
        st.builds(service, name=st.sampled_from(["web", "api", "db"]), ip=st.sampled_from(["10.96.0.1", "10.96.0.2"])),
        max_size=3,
    ).map(lambda items: json.dumps({"apiVersion": "v1", "kind": "List", "items": items})),
    st.sampled_from(["", "{", '{"kind": "Service"}']),
)
_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("rename into place"), _NAMES, _CONTENTS),
        st.tuples(st.just("write in place"), _NAMES, _CONTENTS),
        st.tuples(st.just("remove"), _NAMES, st.none()),
        st.tuples(st.just("move"), _NAMES, _NAMES),
        st.tuples(st.just("new directory"), _NAMES, _CONTENTS),
        st.tuples(st.just("settle"), st.none(), st.none()),
    ),
    max_size=15,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=_OPERATIONS)
def test_any_sequence_ends_where_a_fresh_load_does(operations: list[Any], tmp_path_factory: Any) -> None:
    directory = tmp_path_factory.mktemp("sequence") / "manifests"
    directory.mkdir()
    world = World(directory)
    world.start()
    try:
        for operation, name, argument in operations:
            run_operation(world, operation, name, argument)
        for path in directory.iterdir():  # what is broken keeps what a fresh load cannot know
            if not path.read_text() or "List" not in path.read_text():
                path.unlink()
        world.settle()
    finally:
        world.source.stop()
    fresh = World(directory)
    fresh.load()
    assert world.objects == fresh.objects


def run_operation(world: World, operation: str, name: str, argument: str) -> None:
    path = world.directory / name if name else world.directory
    match operation:
        case "rename into place":
            put_file(path, argument)
        case "write in place":
            path.write_text(argument)
        case "remove":
            path.unlink(missing_ok=True)
        case "move":
            if path.exists():
                path.rename(world.directory / argument)
        case "new directory":
            world.directory.rename(world.directory.with_name("old"))
            new = world.directory.with_name("new")
            new.mkdir()
            put_file(new / name, argument)
            new.rename(world.directory)
            shutil.rmtree(world.directory.with_name("old"))
        case _:
            world.settle()
