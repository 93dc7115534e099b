"""The benchmark at work, at a size where nothing takes long: what it measures of our agent and of a peer that is the same, of
peers that fail, hang and end early, and what is left when it is interrupted."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bench import control_worker, records
from bench.dataplane_peers import iptables, nftables
from bench.dataplane_rules import IPTABLES_NFT, NFTABLES, available
from bench.dataplane_services import Port, Size
from bench.figures import FIGURES
from bench.layouts_worker import NAMES
from bench.listener import Commit, Listener, Seen
from bench.machine import CHECKOUT
from bench.peer_text import IptablesChanges, nftables_change
from bench.plan import Plan
from bench.progress import Bar
from bench.records import Failure, Measurement, Record
from bench.run import Run
from bench.servers import Real
from bench.subjects import OURS, Subject, ours, peers
from integration.apiserver import FakeApi
from integration.apiserver.certificates import Authority
from integration.namespaces import enter
from integration.rest import Rest
from tests.netns import Namespace, in_new_namespace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root"),
]
SIZE = "20x2"
PLAN = Plan(rounds=1, changes=10, services=3, bursts=1, rest=0.2, timeout=60, budget=10, layout_rounds=1)
PATIENCE = 60.0
AGENT = f'cd "{CHECKOUT}" && PYTHONPATH="{CHECKOUT}" "{sys.executable}" -m proxy run "$@"'


def script(directory: Path, name: str, *lines: str) -> Subject:
    path = directory / name
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return peers([str(path)], "nftables")[0]


def run(subjects: Sequence[Subject], plan: Plan = PLAN) -> tuple[dict[str, Any], Run]:
    document: dict[str, Any] = {"measurements": [], "failures": []}
    return document, Run([Size.of(SIZE)], subjects, plan, document, Bar(1, io.StringIO()))


def samples(document: dict[str, Any], subject: str) -> dict[str, list[float]]:
    """By figure, all rounds together."""
    found: dict[str, list[float]] = {}
    for each in document["measurements"]:
        if each["subject"] == subject and each["limit"] is None:
            found.setdefault(each["figure"], []).extend(each["samples"])
    return found


@pytest.mark.slow
def test_a_peer_that_is_the_same_program_is_measured_in_the_same_way(tmp_path: Path) -> None:
    document, bench = run([ours(), script(tmp_path, "same", AGENT)])  # not `exec`: children count as well
    bench.control()
    assert document["failures"] == []
    for subject in (OURS, "same"):
        found = samples(document, subject)
        assert set(found) == {figure.key for figure in FIGURES if figure.part == "control"} | {"restart_connections"}
        assert (len(found["endpoint_ms"]), len(found["service_ms"]), len(found["deleted_ms"])) == (10, 3, 3)
        assert all(
            value > 0 for name, values in found.items() if name.endswith(("_ms", "_s", "_mb")) for value in values
        )
        assert found["start_commits"] == found["ready_commits"] == found["gone_commits"] == [1]
        assert found["restart_things"] == found["restart_failed"] == [0] and found["restart_connections"][0] > 100
        assert found["memory_mb"][0] > 10 and found["cpu_1000_s"][0] > 0.01
        assert set(found["endpoint_bytes"]) == set(found["endpoint_bytes"][:1])
    assert samples(document, OURS)["endpoint_bytes"] == samples(document, "same")["endpoint_bytes"]


class Encrypted:
    """The stand-in as a server whose packets cannot be read: what is not known of a real one is not asked."""

    def __init__(self, authority: Authority) -> None:
        self.ca, self.tokens = authority.ca, {"admin": "secret"}
        self._fake = FakeApi(tls=authority.server(), token=self.tokens["admin"], ca=self.ca)

    @property
    def url(self) -> str:
        return self._fake.url

    def rest(self, user: str = "admin") -> Rest:
        return Rest(self.url, self.ca, self.tokens[user])

    def kubeconfig(self, path: Path, user: str = "admin") -> str:
        return self._fake.kubeconfig(path)

    @contextlib.contextmanager
    def running(self, directory: Path) -> Iterator[Real]:
        with self._fake:
            yield Real(self)


@pytest.mark.slow
def test_a_server_that_speaks_tls_is_measured_with(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Record] = []
    monkeypatch.setattr(control_worker, "server", Encrypted(authority).running)
    monkeypatch.setattr(records, "tell", told.append)
    in_new_namespace(lambda: control_worker.measure(Size.of(SIZE), [ours()], PLAN, tmp_path))
    assert [each for each in told if isinstance(each, Failure)] == []
    found = {each.figure: each.samples for each in told if isinstance(each, Measurement)}
    assert set(found) >= {figure.key for figure in FIGURES if figure.part == "control"}
    assert len(found["endpoint_ms"]) == 10 and found["ready_commits"][0] >= 1 and found["restart_things"] == [0]


@pytest.mark.slow
def test_peers_that_fail_hang_or_end_early_are_told_with_their_last_words(tmp_path: Path) -> None:
    subjects = [
        script(tmp_path, "fails", "echo 'E1130 no such thing' >&2", "exit 3"),
        script(tmp_path, "hangs", "trap '' TERM", "echo waiting >&2", "while :; do sleep 0.2; done"),
        script(
            tmp_path, "early", f"({AGENT}) >/dev/null 2>&1 &",
            "until nft list tables | grep -q kube-proxy-nft; do sleep 0.1; done", "echo 'panic: over' >&2", "exit 2",
        ),
        script(tmp_path, "killed", "kill -KILL $$"),
    ]  # fmt: skip
    document, bench = run(subjects, Plan(rounds=2, timeout=3, rest=0.2))
    bench.control()
    failures = {each["subject"]: each for each in document["failures"]}
    assert set(failures) >= {"fails", "hangs", "killed"}
    assert failures["fails"]["during"] == "start" and failures["fails"]["cause"].endswith("exit code 3")
    assert failures["fails"]["log"] == ["E1130 no such thing"]
    assert failures["killed"]["cause"].endswith("signal 9")
    [limit] = [each for each in document["measurements"] if each["subject"] == "hangs"]  # not again in the second round
    assert (limit["figure"], limit["limit"], limit["samples"]) == ("start_s", 3, [])
    assert failures["hangs"]["cause"] == "not done after 3 s" and failures["hangs"]["log"] == ["waiting"]
    early = failures["early"]
    if early["cause"] != "not done after 3 s":  # as a slow machine may have it
        assert early["cause"].endswith("exit code 2") and early["log"][-1] == "panic: over"


def test_a_worker_that_fails_is_told_and_others_are_measured() -> None:
    document, bench = run([Subject(OURS, ("/nowhere/python",))])
    bench.control()
    [failure] = document["failures"]
    assert failure["subject"] == OURS and "exit code" in failure["cause"] and failure["log"]
    document, bench = run([])
    bench.control()
    assert [each["subject"] for each in document["failures"]] == ["bench"] and document["failures"][0]["log"]


def test_layouts_are_loaded_and_changed_by_the_programs_that_the_peers_use() -> None:
    document, bench = run([])
    bench.layouts()
    assert document["failures"] == []
    there = [name for name in NAMES if available(name)]
    assert {OURS, NFTABLES} <= set(there)
    for name in there:
        found = samples(document, name)
        assert set(found) == {"load_s", "change_ms"} and len(found["change_ms"]) == 3, name
    assert (IPTABLES_NFT in there) == bool(samples(document, IPTABLES_NFT))


@pytest.mark.slow
def test_what_is_measured_before_an_interrupt_is_written_and_nothing_is_left_running(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "bench", "--quick", "--sizes", f"{SIZE},30x2", "--parts", "layouts,control"]
    with subprocess.Popen(
        [*argv, "--output", str(tmp_path)], cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        first = next(line for line in process.stderr if line.startswith("[1/"))
        assert "20 × 2" in first
        descendants = _wait_for_worker(process.pid)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Not complete: interrupted" in output and "20 × 2" in output
    document = json.loads((tmp_path / "bench.json").read_text())
    assert document["stopped"] == "interrupted" and document["measurements"]
    deadline = time.monotonic() + PATIENCE
    while left := [pid for pid in descendants if Path(f"/proc/{pid}/exe").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def _wait_for_worker(pid: int) -> list[int]:
    """All descendants of the process, once there is one at work in a namespace."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = _descendants(pid)
        if len(found) >= 3:
            return found
        time.sleep(0.05)
    raise AssertionError("no worker was started")


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                parent = int(each.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(each.name))
    found, ahead = [], [pid]
    while ahead:
        children = parents.get(ahead.pop(), [])
        found += children
        ahead += children
    return found


def listening(namespace: Namespace) -> Listener:
    with open(f"/proc/self/fd/{namespace.descriptor}") as target:
        started: list[Listener] = []

        def start() -> None:
            enter(target)
            started.append(Listener(["packets", "1"]))

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
    return started[0]


def test_commits_of_every_layout_are_known_by_the_addresses_in_them(namespace: Namespace) -> None:
    """kube-proxy's nftables mode with its anonymous maps, and what iptables-nft makes of the iptables mode's."""
    pod, ip, name = "11.200.0.7", "10.110.0.3", "default/new:http"
    port = Port(name, "tcp", ip, ("11.0.0.1", pod))
    before = [Port("default/old:http", "tcp", "10.96.0.9", ("11.0.0.2",))]
    namespace.run("ip", "link", "set", "lo", "up")
    listener = listening(namespace)
    try:

        def commits(*command: str, stdin: str) -> list[Commit]:
            done = namespace.run(*command, stdin=stdin)
            assert done.returncode == 0, done.stderr
            return listener.until_quiet(Seen(), 0.3).commits

        [made] = commits("nft", "-f", "-", stdin=nftables([*before, port]))
        assert {pod, ip} <= made.added and not made.removed and made.size > 1000 and made.things > 30
        [changed] = commits("nft", "-f", "-", stdin=nftables_change(replace(port, pods=("11.0.0.1", "11.201.0.8"))))
        assert changed.added == {"11.201.0.8"} and 0 < changed.size < made.size
        element = f"delete element ip kube-proxy service-ips {{ {ip} . tcp . 80 }}\n"
        [deleted] = commits("nft", "-f", "-", stdin=element)
        assert deleted.removed == {ip} and deleted.mentions(ip) and not deleted.mentions(pod)
        if available(IPTABLES_NFT):
            text = iptables([*before, port])
            commits("iptables-nft-restore", stdin=iptables(before))
            assert {pod, ip} <= frozenset().union(*(each.added for each in commits("iptables-nft-restore", stdin=text)))
            partly = IptablesChanges(text).change(replace(port, pods=("11.0.0.1", "11.201.0.9")))
            again = commits("iptables-nft-restore", "--noflush", stdin=partly)
            assert "11.201.0.9" in frozenset().union(*(each.added for each in again))
            assert ip not in frozenset().union(*(each.removed for each in again))  # gone and there anew
            gone = commits("iptables-nft-restore", stdin=iptables(before))
            assert ip in frozenset().union(*(each.removed for each in gone))
    finally:
        listener.stop()


def test_nothing_is_flushed_in_a_namespace_that_is_in_use(namespace: Namespace) -> None:
    namespace.run("ip", "link", "set", "lo", "up")
    task = {"size": SIZE, "subjects": [asdict(ours())], "plan": asdict(PLAN), "directory": "/tmp"}
    namespace.nft("add", "table", "ip", "keep")
    done = namespace.run(sys.executable, "-m", "bench.control_worker", json.dumps(task))
    assert done.returncode == 1 and "new network namespace" in done.stderr
    assert "keep" in namespace.nft("list", "tables")


def test_without_root_it_says_so() -> None:
    done = subprocess.run(
        ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-m", "bench", "--output", "/tmp"],
        cwd=CHECKOUT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 5 and "run it as root" in done.stderr and "Traceback" not in done.stderr
