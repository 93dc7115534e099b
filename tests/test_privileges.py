"""What the agent gives up after its start: shown by real processes, as what the kernel says of them, and by what they can
still do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy import privileges
from tests import container, deployed
from tests.deployed import wait_until
from tests.kustomize import Object
from tests.netns import Namespace
from tests.objects import endpoint_slice, list_of, service
from tests.test_deploy_agent import daemonset, mounts, objects

pytestmark = pytest.mark.root

__all__ = ["daemonset", "mounts", "objects"]

REPO = container.REPO
NOBODY = 65534
BIND, ADMIN, SEARCH = 1 << privileges.NET_BIND_SERVICE, 1 << privileges.NET_ADMIN, 1 << privileges.DAC_READ_SEARCH
SETPRIV, NSENTER = (shutil.which(name) or name for name in ("setpriv", "nsenter"))
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")

PROGRAM = """
import json, subprocess, sys, threading
sys.path.insert(0, {repo!r})
from proxy import privileges
def status(path="/proc/thread-self/status"):
    return dict(line.split(":\\t", 1) for line in open(path).read().splitlines())
privileges.drop(sys.argv[1:])
found = [status()]
thread = threading.Thread(target=lambda: found.append(status()))
thread.start()
thread.join()
shown = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
found.append(dict(line.split(":\\t", 1) for line in shown.splitlines()))
print(json.dumps(found))
"""


def after_drop(*reads: str | Path, before: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """/proc/PID/status of a thread that has dropped its privileges, one that it starts then, and a program that it runs
    then."""
    argv = [*before, sys.executable, "-c", PROGRAM.format(repo=str(REPO)), *map(str, reads)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def sets(status: dict[str, str]) -> dict[str, int]:
    return {name: int(status[name], 16) for name in SETS}


def all_but(inherited: int, kept: int, bounding: int) -> dict[str, int]:
    return {"CapInh": inherited, "CapPrm": kept, "CapEff": kept, "CapBnd": bounding, "CapAmb": 0}


def test_root_keeps_two_and_so_do_its_threads_and_programs() -> None:
    for status in after_drop():
        assert sets(status) == all_but(0, BIND | ADMIN, BIND | ADMIN)
        assert status["NoNewPrivs"] == "1"


def test_a_user_with_ambient_capabilities_keeps_what_is_needed_of_them() -> None:
    given = "+net_admin,+net_raw,+sys_ptrace"
    user = (SETPRIV, "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
    own, thread, program = after_drop(before=(*user, "--inh-caps", given, "--ambient-caps", given))
    for status in (own, thread):
        bounding = int(status["CapBnd"], 16)
        assert sets(status) == all_but(0, ADMIN, bounding)  # which to empty takes CAP_SETPCAP; and it has no effect now
    assert sets(program)["CapPrm"] == 0  # what it gets is in none of its sets
    assert {status["NoNewPrivs"] for status in (own, thread, program)} == {"1"}


@pytest.mark.parametrize("less", [("--bounding-set", "-all"), ("--bounding-set", "-all,+net_admin")])
def test_where_there_is_nothing_to_give_up(less: tuple[str, ...]) -> None:
    own, *_ = after_drop(before=(SETPRIV, *less, "--inh-caps", "-all"))
    assert sets(own)["CapPrm"] == (ADMIN if "net_admin" in less[1] else 0)


def test_a_file_that_only_root_may_read_by_privilege_can_be_read_later(public: Path) -> None:
    open_, closed, theirs, mine = (public / name for name in ("open", "closed", "theirs", "mine"))
    for file, mode in ((open_, 0o644), (closed, 0o600)):
        file.write_text("x")
        file.chmod(mode)
        os.chown(file, NOBODY, NOBODY)
    for directory in (theirs, mine):
        directory.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    assert sets(after_drop(open_, mine, public / "none")[0])["CapPrm"] == BIND | ADMIN
    for path in (closed, theirs, public):  # of a directory, what is in it and what may come
        assert sets(after_drop(path)[0]) == all_but(0, BIND | ADMIN | SEARCH, BIND | ADMIN | SEARCH), path


class Refuses:
    """A C library whose kernel does not like any of it."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: -1


def test_it_never_keeps_an_agent_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in (Refuses(), object()):
        monkeypatch.setattr(privileges, "_LIBC", library)
        with capture_logs() as logs:
            privileges.drop()
        assert {log["log_level"] for log in logs} == {"debug"}
        assert logs[-1] == {"event": "privileges_dropped", "log_level": "debug", "kept": []}


def test_each_that_is_kept_has_a_name_and_a_reason() -> None:
    assert {privileges.NET_ADMIN, privileges.NET_BIND_SERVICE} == privileges.NEEDED.keys()
    assert all(privileges.NEEDED.values())


# The agent.

# Ends the process where it would start another, and says on standard error what it opens to write.
WATCHED = """
import os, sys
sys.path.insert(0, {repo!r})
forbidden = {{"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn"}}
def watch(event, arguments):
    if event in forbidden:
        os.write(2, f"STARTS {{event}} {{arguments}}\\n".encode())
        os._exit(99)
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        os.write(2, f"WRITES {{arguments[0]}}\\n".encode())
sys.addaudithook(watch)
from proxy import cli
sys.exit(cli.main())
"""
NODE = {
    "kind": "Node",
    "apiVersion": "v1",
    "metadata": {"name": "node0"},
    "status": {"addresses": [{"type": "InternalIP", "address": deployed.ADDRESS}]},
}
WEB = service("web", "10.96.0.1"), endpoint_slice("web", "10.244.0.1")
LOW_PORT = 81
CHECKED = service("low", "10.96.0.2", type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=LOW_PORT)
NODEPORT = service("np", "10.96.0.3", type="NodePort")
NODEPORT["spec"]["ports"][0]["nodePort"] = 82


class Process:
    """An agent on a node: not in a container."""

    def __init__(self, namespace: Namespace, directory: Path, *before: str) -> None:
        self.manifests, self.config, self.log = (directory / name for name in ("manifests", "config", "log"))
        self.manifests.mkdir()
        (self.manifests / "all.json").write_text(list_of(NODE, *WEB))
        self.configure(
            "nodePortAddresses: [127.0.0.0/8, 192.0.2.0/24]\nconntrack: {tcpEstablishedTimeout: 1h, maxPerCore: 0}\n"
        )
        namespace.run("ip", "link", "set", "lo", "up")
        namespace.run("ip", "address", "add", f"{deployed.ADDRESS}/32", "dev", "lo")
        enter = [NSENTER, f"--net=/proc/{os.getpid()}/fd/{namespace.descriptor}", *before]
        files = ["--config", str(self.config), "--manifests", str(self.manifests), "--node", "node0"]
        argv = [*enter, sys.executable, "-c", WATCHED.format(repo=str(REPO)), "run", *files, "--log-level", "debug"]
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(argv, stderr=log, cwd="/")

    def configure(self, text: str) -> None:
        head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n"
        fresh = self.config.with_suffix(".new")
        fresh.write_text(f"{head}detectLocalMode: ClusterCIDR\nclusterCIDR: 10.244.0.0/16\n{text}")
        fresh.replace(self.config)

    def events(self, *names: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] in names]

    def said(self, word: str) -> set[str]:
        return {line.partition(" ")[2] for line in self.log.read_text().splitlines() if line.startswith(word)}

    def wait_for(self, event: str, times: int = 1) -> dict[str, Any]:
        wait_until(
            lambda: len(self.events(event)) >= times or self.popen.poll() is not None,
            f"{event}\n{self.log.read_text()}",
        )
        assert len(self.events(event)) >= times, self.log.read_text()
        return self.events(event)[0]

    def threads(self) -> list[dict[str, str]]:
        """Each one's /proc/PID/task/TID/status."""
        files = Path(f"/proc/{self.popen.pid}/task").glob("*/status")
        return [dict(line.split(":\t", 1) for line in file.read_text().splitlines()) for file in files]

    def children(self) -> str:
        return "".join(file.read_text() for file in Path(f"/proc/{self.popen.pid}/task").glob("*/children"))

    def end(self) -> int:
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(timeout=deployed.WAIT)


@pytest.fixture
def root(namespace: Namespace, tmp_path: Path) -> Iterator[Process]:
    process = Process(namespace, tmp_path)
    yield process
    process.popen.kill()
    process.popen.wait()


def test_an_agent_of_plain_root(namespace: Namespace, root: Process) -> None:
    """It has dropped all but two, in all of its threads, and does all of its work with them; it starts no program, and
    writes nothing but settings of the kernel."""
    root.wait_for("programmed")
    assert root.wait_for("privileges_dropped")["kept"] == ["CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN"]
    root.wait_for("sysctl_set")
    timeout = namespace.run("cat", "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established").stdout
    assert timeout == "3600\n"
    # Ports below 1024, which come later.
    (root.manifests / "more.json").write_text(list_of(CHECKED, NODEPORT, endpoint_slice("np", "10.244.0.2")))
    for spot in ((deployed.ADDRESS, LOW_PORT), ("127.0.0.1", 82)):
        ask = f"import socket; socket.create_connection({spot}, 5)"
        wait_until(lambda ask=ask: namespace.run(sys.executable, "-c", ask).returncode == 0, spot)  # type: ignore[misc]
    # Others' changes are seen and undone.
    namespace.run("nft", "flush", "chain", "ip", "kube-proxy-nft", "services")
    wait_until(
        lambda: "jump" in namespace.run("nft", "list", "chain", "ip", "kube-proxy-nft", "services").stdout, "nft"
    )
    threads = root.threads()
    assert len(threads) > 5
    for status in threads:
        assert sets(status) == all_but(0, BIND | ADMIN, BIND | ADMIN), status["Name"]
        assert status["NoNewPrivs"] == "1"
    assert root.children() == ""
    root.configure("nodePortAddresses: [127.0.0.0/8]\nconntrack: {tcpEstablishedTimeout: 2h, maxPerCore: 0}\n")
    assert root.popen.wait(timeout=deployed.WAIT) == 8, "the configuration that changed was read again"
    assert root.said("STARTS") == set()
    written = {file for file in root.said("WRITES") if not file.startswith(("/proc/sys/net/", "/dev/null"))}
    assert written <= {"/proc/self/oom_score_adj"}
    assert root.events("unexpected_failure", "tables_not_watched", "failed") == []


def test_an_agent_of_an_ordinary_user_with_ambient_capabilities(namespace: Namespace, public: Path) -> None:
    given = "+net_admin,+net_bind_service,+net_raw,+sys_ptrace,+setpcap"
    user = (SETPRIV, "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
    agent = Process(namespace, public, *user, "--inh-caps", given, "--ambient-caps", given)
    try:
        agent.wait_for("programmed")
        agent.wait_for("sysctl_set")  # the kernel lets CAP_NET_ADMIN write those of net
        (agent.manifests / "more.json").write_text(
            list_of(service("b", "10.96.0.4"), endpoint_slice("b", "10.244.0.2"))
        )
        agent.wait_for("committed")
        for status in agent.threads():
            assert sets(status) == all_but(0, BIND | ADMIN, BIND | ADMIN), status["Name"]
        assert agent.end() == 0
    finally:
        agent.popen.kill()
        agent.popen.wait()
    assert agent.said("STARTS") == set()
    assert agent.events("failed", "unexpected_failure") == []


def test_the_agent_of_the_daemonset(namespace: Namespace, daemonset: Object, mounts: list[container.Mount]) -> None:
    with deployed.running(namespace, daemonset, mounts, "--manifests=/cluster", "--log-level=debug") as agent:
        agent.wait_for("programmed")
        assert agent.wait_for("privileges_dropped")["kept"] == ["CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN"]
        pid = container.first_process(agent.engine)
        found = [textwrap.dedent(file.read_text()) for file in Path(f"/proc/{pid}/task").glob("*/status")]
        for text in found:
            status = dict(line.split(":\t", 1) for line in text.splitlines())
            assert sets(status) == all_but(0, BIND | ADMIN, BIND | ADMIN)
            assert status["NoNewPrivs"] == "1"
        assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""
        assert agent.terminate() == 0
