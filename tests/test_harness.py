"""The bed of namespaces and the demo: packets arrive, failures are seen, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from integration import namespaces, privileges
from integration.agent import Agent, AgentEnded
from integration.story import Change, to_a_gone_endpoint
from integration.topology import CHECKOUT, Bed
from integration.traffic import Attempt, Commits, LongLived, Stream, ask, endpoint, tally, until
from proxy.errors import NoPermission

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root, or `unshare -Urnm`")
needs_agent = pytest.mark.skipif(not (CHECKOUT / "proxy/__main__.py").exists(), reason="`python -m proxy` is missing")
pytestmark = [pytest.mark.root, needs_root]

VIP4, VIP6, VIP_PORT = "10.96.0.1", "fd00:10:96::1", 80
NAT: Final = """
table ip t {{
    chain pre {{ type nat hook prerouting priority -100; ip daddr 10.96.0.1 tcp dport 80 dnat to {v4}:8080; }}
    chain post {{ type nat hook postrouting priority 100; ip saddr {v4} ip daddr {v4} masquerade; }}
}}
table ip6 t {{
    chain pre {{ type nat hook prerouting priority -100; ip6 daddr fd00:10:96::1 tcp dport 80 dnat to [{v6}]:8080; }}
    chain post {{ type nat hook postrouting priority 100; ip6 saddr {v6} ip6 daddr {v6} masquerade; }}
}}
"""
# A run of its own: it tells its process id and that of a child on the node, then does what `ENDING` says.
RUN: Final = """
import os, signal, sys
from integration import privileges
privileges.acquire()
from integration.topology import Bed
from integration.traffic import ask
with Bed() as bed:
    child = bed.node.namespace.popen(["sleep", "1000"])
    print(os.getpid(), child.pid, ask(bed.client, bed.pod3.ipv6, 8080).endpoint, flush=True)
    {ending}
print("left", flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def _prepared() -> None:
    privileges.acquire()


@pytest.fixture(scope="module")
def bed(_prepared: None) -> Iterator[Bed]:
    with Bed() as it:
        yield it


@pytest.fixture
def nat(bed: Bed) -> Iterator[Bed]:
    """The bed with an address of a pretended Service that leads to pod-1."""
    node = bed.node.namespace
    node.run(["nft", "-f", "-"], text_in=NAT.format(v4=bed.pod1.ipv4, v6=bed.pod1.ipv6))
    yield bed
    node.run(["nft", "flush", "ruleset"])


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
@pytest.mark.parametrize("family", [4, 6])
def test_everybody_reaches_every_pod_directly(bed: Bed, family: int, protocol: str) -> None:
    for source in (*bed.pods, bed.client, bed.node):
        for pod in bed.pods:
            answer = ask(source, pod.address(family), 8080, protocol)
            assert answer.endpoint == endpoint(pod.address(family), 8080)
            assert answer.seen == answer.own
            assert source.picks_source or answer.seen == source.address(family)


@pytest.mark.parametrize("vip", [VIP4, VIP6])
def test_answers_tell_endpoint_and_source_through_nat(nat: Bed, vip: str) -> None:
    family = 6 if ":" in vip else 4
    for source in (nat.client, nat.pod2, nat.pod3):
        answer = ask(source, vip, VIP_PORT)
        assert (answer.endpoint, answer.seen) == (endpoint(nat.pod1.address(family), 8080), source.address(family))
    hairpin = ask(nat.pod1, vip, VIP_PORT)
    assert hairpin.seen != hairpin.own == nat.pod1.address(family)


def test_failures_have_names(bed: Bed) -> None:
    with pytest.raises(ConnectionRefusedError):
        ask(bed.client, bed.pod1.ipv4, 1)
    assert tally(bed.client, bed.pod1.ipv6, 1, count=3).failures == {"refused": 3}
    bed.node.namespace.run(
        ["nft", "-f", "-"], text_in="table ip t { chain c { type filter hook forward priority 0; drop; }; }"
    )
    assert tally(bed.client, bed.pod1.ipv4, 8080, count=2, timeout=0.05).failures == {"no answer": 2}
    bed.node.namespace.run(["nft", "delete table ip t"])


def test_a_stream_counts_answers_and_failures(nat: Bed) -> None:
    stream = Stream(nat.client, VIP4, VIP_PORT)
    stream.start()
    assert until(lambda: len(stream.attempts) >= 20)
    nat.node.namespace.run(
        ["nft", "-f", "-"],
        text_in="add rule ip t pre ip daddr 10.96.0.1 reject with tcp reset\n"
        "insert rule ip t pre tcp dport 80 reject with tcp reset",
    )
    assert until(lambda: stream.attempts[-1].failure != "")
    attempts = stream.stop()
    assert {a.endpoint for a in attempts[:20]} == {endpoint(nat.pod1.ipv4, 8080)}
    assert {a.failure for a in attempts} == {"", "refused"}
    assert all(a.started <= a.ended for a in attempts)


def test_long_lived_connections_carry_lines_and_outlive_the_rule(nat: Bed) -> None:
    lasting = LongLived(nat.pod2, VIP6, VIP_PORT, count=3, pause=0.001)
    # In one transaction: while there is no nat chain at all, nothing is translated, not even what conntrack knows.
    other = NAT.format(v4=nat.pod2.ipv4, v6=nat.pod2.ipv6)
    nat.node.namespace.run(["nft", "-f", "-"], text_in=f"flush ruleset\n{other}")
    before = lasting.lines
    assert until(lambda: lasting.lines > before + 10)
    lasting.stop()
    assert lasting.endpoints == {endpoint(nat.pod1.ipv6, 8080): 3}
    assert lasting.broken == []


def test_long_lived_connections_that_break_are_told() -> None:
    with Bed() as bed:
        lasting = LongLived(bed.client, bed.pod3.ipv4, 8080, count=2, pause=0.001)
        assert until(lambda: lasting.lines > 4)
        bed.servers.stop()
        assert until(lambda: len(lasting.broken) == 2)
        lasting.stop()
    assert all(b.startswith(endpoint(bed.pod3.ipv4, 8080)) for b in lasting.broken)


def test_commits_are_heard_from_the_kernel(bed: Bed) -> None:
    commits = Commits(bed.node.namespace)
    try:
        with pytest.raises(TimeoutError):
            commits.after(0, timeout=0.01)
        bed.node.namespace.run(["nft", "add table ip t"])
        first = commits.after(0)
        bed.node.namespace.run(["nft", "delete table ip t"])
        assert commits.after(first) > first
    finally:
        commits.close()


def agent(bed: Bed, script: str) -> Agent:
    return Agent(bed.node.namespace, [sys.executable, "-c", script], CHECKOUT)


def test_events_of_an_agent_are_read(bed: Bed) -> None:
    it = agent(
        bed,
        "import json, sys, time\n"
        "for n in (1, 2):\n"
        "    print(json.dumps({'event': 'committed', 'milliseconds': n}), file=sys.stderr, flush=True)\n"
        "time.sleep(1000)",
    )
    try:
        assert it.wait("committed")["milliseconds"] == 1
        assert it.wait("committed", since=1)["milliseconds"] == 2
        with pytest.raises(TimeoutError):
            it.wait("committed", since=2, timeout=0.05)
        it.check()
    finally:
        it.stop()
    with pytest.raises(AgentEnded, match="signal 15"):
        it.check()


def test_an_agent_that_ends_says_why(bed: Bed) -> None:
    it = agent(
        bed,
        "import sys\n"
        'print(\'{"event": "started", "level": "info"}\', file=sys.stderr)\n'
        'print(\'{"event": "refused", "level": "error", "table": "t"}\', file=sys.stderr)\n'
        "print('no luck', file=sys.stderr)\n"
        "sys.exit(7)",
    )
    with pytest.raises(AgentEnded, match="exit code 7") as caught:
        it.wait("committed")
    it.stop()
    assert caught.value.lines == ["refused table=t", "no luck"]
    assert caught.value.exit_code == 7


def test_stopping_an_agent_ends_its_children(bed: Bed) -> None:
    it = agent(
        bed,
        "import json, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '1000'], stderr=subprocess.DEVNULL)\n"
        "print(json.dumps({'event': 'child', 'pid': child.pid}), file=sys.stderr, flush=True)\n"
        "time.sleep(1000)",
    )
    child = it.wait("child")["pid"]
    it.stop()
    assert until(lambda: gone(child))


def test_beds_do_not_meet(bed: Bed) -> None:
    with Bed() as other:
        assert not {n.name for n in bed.namespaces} & {n.name for n in other.namespaces}
        other.node.namespace.run(["nft", "-f", "-"], text_in=NAT.format(v4=other.pod2.ipv4, v6=other.pod2.ipv6))
        assert ask(other.client, VIP4, VIP_PORT).endpoint == endpoint(other.pod2.ipv4, 8080)
        with pytest.raises(OSError, match=r"timed out|unreachable|No route"):
            ask(bed.client, VIP4, VIP_PORT, timeout=0.1)
    assert ask(bed.client, bed.pod4.ipv4, 8080).endpoint == endpoint(bed.pod4.ipv4, 8080)


def test_a_thread_is_back_where_it_was(bed: Bed) -> None:
    def here() -> str:
        return os.readlink("/proc/thread-self/ns/net")

    home = here()
    with bed.node.namespace.entered():
        node = here()
        with bed.pod1.namespace.entered():
            pod = here()
        assert here() == node
    assert here() == home
    assert len({home, node, pod}) == 3


def test_a_thread_is_back_after_an_error(bed: Bed) -> None:
    home = os.readlink("/proc/thread-self/ns/net")
    with pytest.raises(ZeroDivisionError), bed.node.namespace.entered():
        raise ZeroDivisionError
    assert os.readlink("/proc/thread-self/ns/net") == home


def gone(pid: int) -> bool:
    """No process of this id, or one that waits for its parent to notice that it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def environment() -> dict[str, str]:
    """Where any interpreter of this version finds the harness and what it needs."""
    path = [str(CHECKOUT), *site.getsitepackages(), *filter(None, [os.environ.get("PYTHONPATH")])]
    clean = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")}
    return {**clean, "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}


class Run:
    """RUN as a process, started and up."""

    def __init__(self, ending: str, prefix: tuple[str, ...] = (), python: str = sys.executable) -> None:
        self.process = subprocess.Popen(
            [*prefix, python, "-c", RUN.format(ending=ending)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd="/",
        )
        assert self.process.stdout
        words = self.process.stdout.readline().split()
        if len(words) != 3:
            raise AssertionError(f"the run did not come up: {self.process.communicate()}")
        self.pid, self.child, self.reached = int(words[0]), int(words[1]), words[2]

    def finish(self) -> tuple[int, str]:
        """Exit code and the rest of its standard output and error."""
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out + err


@pytest.mark.parametrize(
    ("ending", "says"),
    [("pass", "left"), ("raise ValueError('x')", "ValueError"), ("sys.exit(3)", ""), ("os.kill(child.pid, 9)", "left")],
)
def test_nothing_is_left_however_a_run_ends(ending: str, says: str) -> None:
    run = Run(ending)
    _, output = run.finish()
    assert says in output
    assert gone(run.child)
    assert namespaces.of_run(run.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_after_a_signal(number: signal.Signals) -> None:
    run = Run("signal.pause()")
    assert len(namespaces.of_run(run.pid)) == 5
    assert not gone(run.child)
    # It waits: a signal in between could meet a finaliser, where Python drops what a handler raises.
    deadline = time.monotonic() + 10
    while Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < deadline
    for _ in range(3):  # impatience does not spoil the cleaning up
        run.process.send_signal(number)
    _, output = run.finish()
    assert "KeyboardInterrupt" in output
    assert gone(run.child)
    assert namespaces.of_run(run.pid) == []


def test_a_signal_while_the_bed_comes_up_leaves_nothing() -> None:
    script = (
        "import os, signal\n"
        "from integration import namespaces, topology\n"
        "create = namespaces.create\n"
        "def interrupted(them):\n"
        "    create(them)\n"
        "    print(os.getpid(), len(namespaces.of_run(os.getpid())), flush=True)\n"
        "    signal.pause()\n"
        "namespaces.create = interrupted\n"
        "with topology.Bed(): print('up')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    pid, there = map(int, process.stdout.readline().split())
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert there == 5
    assert "up" not in out
    assert "KeyboardInterrupt" in err
    assert namespaces.of_run(pid) == []


def test_the_next_run_removes_what_a_killed_one_left() -> None:
    run = Run("signal.pause()")
    run.process.kill()
    run.finish()
    assert until(lambda: gone(run.child))
    assert len(namespaces.of_run(run.pid)) == 5
    removed = namespaces.remove_leftovers()
    assert len([name for name in removed if name.startswith(f"kpn-{run.pid}-")]) == 5
    assert namespaces.of_run(run.pid) == []


def test_namespaces_of_a_run_that_lives_are_no_leftovers(bed: Bed) -> None:
    assert not {n.name for n in bed.namespaces} & set(namespaces.remove_leftovers())
    assert ask(bed.client, bed.pod1.ipv4, 8080)


NOBODY: Final = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all")


def python_for_nobody() -> str:
    """An interpreter that an ordinary user may start and that finds what the harness needs; else the test is skipped."""
    said = ""
    for python in (sys.executable, "/usr/bin/python3"):
        command = [*NOBODY, *privileges._UNSHARE, python, "-c", "import integration.story"]
        tried = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), cwd="/")
        if tried.returncode == 0:
            return python
        said = tried.stderr.strip()
    pytest.skip(f"an ordinary user cannot run the harness here: {said.splitlines()[-1] if said else 'no reason given'}")


def test_an_ordinary_user_needs_no_root() -> None:
    run = Run("signal.pause()", NOBODY, python_for_nobody())
    assert run.reached == "[fd44:1::2]:8080"
    assert run.pid == run.process.pid  # the process that a user stops is the one that cleans up
    assert namespaces.of_run(run.pid) == []  # the machine's own directory has not been touched
    run.process.send_signal(signal.SIGTERM)
    _, output = run.finish()
    assert "KeyboardInterrupt" in output
    assert gone(run.child)


def test_without_user_namespaces_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    switch = tmp_path / "switch"
    switch.write_text("0\n")
    monkeypatch.setattr(privileges, "_privileged", lambda: False)
    monkeypatch.setattr(privileges, "refusal", lambda: "Operation not permitted")
    monkeypatch.setattr(privileges, "_SWITCHES", ((str(switch), "0", "user.max_user_namespaces=10000"),))
    with pytest.raises(NoPermission) as caught:
        privileges.acquire()
    assert "Operation not permitted" in str(caught.value)
    assert "run it as root" in str(caught.value)
    assert "sysctl -w user.max_user_namespaces=10000" in str(caught.value)


def demo(*prefix: str, python: str = sys.executable, patch: str = "", **env: str) -> subprocess.Popen[str]:
    """The demo in a pipe; `patch` is Python that runs before."""
    script = f"import sys\n{patch}\nfrom integration.demo import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [*prefix, python, "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
        env={**environment(), **env},
    )


FAILING_AGENT: Final = """
from integration import agent, topology
def failing(self, *_):
    script = '''import sys
print('{"event": "config_invalid", "level": "error", "field": "mode"}', file=sys.stderr); sys.exit(3)'''
    return agent.Agent(self.node.namespace, [sys.executable, "-c", script], topology.CHECKOUT)
topology.Bed.agent = failing
"""


def test_the_demo_shows_why_its_agent_failed() -> None:
    process = demo(patch=FAILING_AGENT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 3
    assert err.splitlines() == [
        "agent: config_invalid field=mode",
        "kube-proxy-nft demo: agent: it ended with exit code 3",
    ]
    assert namespaces.of_run(process.pid) == []


def test_the_demo_names_a_program_that_is_missing(tmp_path: Path) -> None:
    process = demo(PATH=str(tmp_path))
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err == "kube-proxy-nft demo: program 'ip': it is not installed (install the package iproute2)\n"


@needs_agent
@pytest.mark.timeout(60)
def test_the_demo_loses_nothing_and_prints_plain_text() -> None:
    process = demo()
    out, err = process.communicate(timeout=45)
    assert process.returncode == 0, out + err
    assert err == ""
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 100
    assert "0 failed, 0 reached a removed endpoint" in out
    assert "0 connections lost" in out
    assert out.count("refused after") == 2
    for pod in ("pod-1 10.244.0.2:8080", "pod-2 [fd44::3]:8080", "pod-3 [fd44:1::2]:8080", "pod-4 10.244.1.3:5353"):
        assert pod in out
    assert namespaces.of_run(process.pid) == []


@needs_agent
@pytest.mark.timeout(60)
def test_the_demo_needs_no_root() -> None:
    process = demo(*NOBODY, python=python_for_nobody())
    out, err = process.communicate(timeout=45)
    assert process.returncode == 0, out + err
    assert "0 failed, 0 reached a removed endpoint" in out
    assert "nsenter --target" in out
    assert namespaces.of_run(process.pid) == []


@needs_agent
@pytest.mark.timeout(60)
@pytest.mark.parametrize("step", ["1. ", "2. ", "3. ", "5. "])
def test_the_demo_cleans_up_when_interrupted(step: str) -> None:
    process = demo()
    assert process.stdout
    for line in process.stdout:
        if line.startswith(step):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, out + err
    assert "Interrupted" in out
    assert "Traceback" not in err
    assert namespaces.of_run(process.pid) == []


@pytest.mark.parametrize(
    ("started", "ended", "wrong"),
    [
        (0.5, 0.6, False),  # before the removal
        (1.5, 2.5, False),  # begun before the kernel had it
        (2.5, 2.6, True),  # begun after
        (2.5, 3.5, False),  # begun after, answered when the endpoint may have been back
        (4.5, 4.6, False),  # back
    ],
)
def test_a_connection_to_a_removed_endpoint_is_wrong(started: float, ended: float, wrong: bool) -> None:
    pod = SimpleNamespace(ipv4="10.0.0.1")
    changes = [
        Change("remove", pod, False, renamed=1, committed=2, agent_ms=None),  # type: ignore[arg-type]
        Change("add", pod, True, renamed=3, committed=4, agent_ms=None),  # type: ignore[arg-type]
    ]
    assert to_a_gone_endpoint(Attempt(started, ended, "10.0.0.1:8080"), changes) is wrong
    assert not to_a_gone_endpoint(Attempt(started, ended, "10.0.0.2:8080"), changes)
