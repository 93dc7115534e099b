"""Other programs' tables: what stands where ours do is told of once, and none of it is any of our business."""

from __future__ import annotations

import errno
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy import neighbours as told_by
from proxy.agent import Agent
from proxy.events import Event, Inbox, TablesTouched
from proxy.neighbours import MAX_TOLD, Neighbours
from proxy.state import State
from rules import kernel as kernel_module
from rules import neighbours, netlink_socket
from rules.changes import Changes
from rules.errors import KernelUnreachable
from rules.kernel import Kernel
from rules.kernel_watch import KernelWatch
from rules.layout import LAYOUTS, Options
from rules.lookout import Lookout
from rules.neighbours import Neighbour
from rules.netlink import (
    BATCH_BEGIN,
    BATCH_END,
    NETLINK_NETFILTER,
    NEWCHAIN,
    NEWGEN,
    NEWRULE,
    NEWSET,
    NEWTABLE,
    NLM_F_ACK,
    NLM_F_APPEND,
    NLM_F_CREATE,
    Message,
    attribute,
    batch_mark,
    error_of,
    message,
    messages,
    nested,
    text,
    u32,
)
from rules.tables import create
from tests.histories import NODE_NAME, listing, remember
from tests.netns import Namespace
from tests.objects import endpoint_slice, list_of, service
from tests.test_agent import WEB, put
from tests.test_end_to_end import Node, manifests, node

__all__ = ["manifests", "node"]

needs_root = pytest.mark.root

# -- What is one -------------------------------------------------------------------------------------------------------


def look(namespace: Namespace) -> list[Neighbour]:
    def body() -> list[Neighbour]:
        with Lookout() as lookout:
            return lookout.neighbours()

    return namespace.inside(body)


@needs_root
@pytest.mark.parametrize("family", ["ip", "ip6", "inet"])
def test_a_nat_chain_at_a_hook_and_priority_of_ours(namespace: Namespace, family: str) -> None:
    chains = {
        "a": "type nat hook prerouting priority -100;",
        "b": "type nat hook output priority -100;",
        "c": 'type nat hook postrouting priority 100; comment "x";',
        "other-priority": "type nat hook prerouting priority -101;",
        "other-hook": "type nat hook input priority 100;",
        "swapped": "type nat hook postrouting priority -100;",
        "no-nat": "type filter hook prerouting priority -100;",
        "regular": "",
        "nat-x": "",
    }
    body = "\n".join(f"chain {name} {{ {text} }}" for name, text in chains.items())
    namespace.nft("-f", "-", stdin=f"table {family} t {{ {body}\n }}")
    for layout in LAYOUTS.values():
        namespace.kernel.commit(create(layout, Options(), ()))
    hooks = {"a": "prerouting", "b": "output", "c": "postrouting"}
    assert sorted(look(namespace), key=lambda n: n.chain) == [
        Neighbour(family, "t", chain, hook) for chain, hook in hooks.items()
    ]


@needs_root
def test_tables_of_other_families_are_none(namespace: Namespace) -> None:
    namespace.nft(
        "add table arp t; add table bridge t; add table netdev t; add chain bridge t c { type filter hook prerouting priority -100; }"
    )
    assert look(namespace) == []


@needs_root
def test_a_table_of_our_name_in_another_family_is_not_ours(namespace: Namespace) -> None:
    namespace.nft(
        "add table inet kube-proxy-nft; add chain inet kube-proxy-nft x { type nat hook prerouting priority -100; }"
    )
    assert look(namespace) == [Neighbour("inet", "kube-proxy-nft", "x", "prerouting")]


@given(st.binary(max_size=120))
def test_whatever_a_message_holds(body: bytes) -> None:
    """Of a chain that calls itself nat: a neighbour, none, or not to be understood."""
    for data in (body, bytes([2, 0, 0, 0]) + text(7, "nat") + body):
        try:
            neighbours.read(Message(NEWCHAIN, 0, 0, memoryview(data)))
        except ValueError:
            pass


@needs_root
def test_one_that_comes_is_heard_of(namespace: Namespace) -> None:
    watch = namespace.inside(lambda: KernelWatch(namespace.kernel.port))
    for layout in LAYOUTS.values():
        namespace.kernel.commit(create(layout, Options(), ()))
    namespace.nft("add table ip x; add chain ip x far { type nat hook prerouting priority -99; }; add chain ip x c")
    assert watch.read(0.0) == [] == watch.take_neighbours()
    namespace.nft(
        "add chain ip x near { type nat hook prerouting priority -100; };"
        "add chain ip x near-too { type nat hook output priority -100; }"
    )
    assert watch.read(10.0) == []
    assert [n.chain for n in watch.take_neighbours()] == ["near", "near-too"]
    assert watch.read(0.0) == [] == watch.take_neighbours()
    namespace.nft("add", "element", "ip", "kube-proxy-nft", "cluster-ips", "{ 10.96.0.1 }")
    assert watch.read(10.0) != []
    watch.close()


def test_half_a_transaction_is_none() -> None:
    hook = nested(4, u32(1, 0), u32(2, -100))
    body = text(1, "x") + text(3, "c") + hook + text(7, "nat")
    changes = Changes(own=7)
    assert changes.feed(message(NEWCHAIN, 0, 1, 2, body)) == [] == changes.neighbours
    changes.feed(message(NEWGEN, 0, 1, 0, b""))
    assert changes.neighbours == [Neighbour("ip", "x", "c", "prerouting")]


# -- What is said ------------------------------------------------------------------------------------------------------


def near(family: str = "ip", table: str = "x", *chains: str) -> list[Neighbour]:
    return [Neighbour(family, table, chain, "prerouting") for chain in chains or ("c",)]


class Blind:
    """A kernel that is not to be asked."""

    def __init__(self) -> None:
        raise KernelUnreachable(errno.EPERM, "no")


def told(action: Callable[[Neighbours], None]) -> list[dict[str, Any]]:
    with capture_logs() as logs:
        action(Neighbours(Blind))  # type: ignore[arg-type]
    return [dict(log) for log in logs]


@pytest.mark.parametrize(
    ("table", "level", "program"),
    [
        ("mine", "warning", "unknown"),
        ("nat", "warning", "unknown"),  # iptables has no chain of this name
        ("kube-proxy", "warning", "kube-proxy"),
        ("docker-bridges", "info", "Docker"),
        ("flannel-ipv4", "info", "flannel"),
    ],
)
def test_who_it_is(table: str, level: str, program: str) -> None:
    [log] = told(lambda n: n.came(near("ip", table)))
    assert (log["event"], log["log_level"], log["program"]) == ("nat_neighbour", level, program)
    assert (log["family"], log["table"], log["chains"]) == ("ip", table, ["c (prerouting)"])
    assert log["cause"] and ("remedy" in log) == (level == "warning")


def test_the_chains_of_a_table_are_one_event() -> None:
    logs = told(lambda n: n.came([*near("ip", "x", "a", "b"), *near("ip6", "x", "a"), *near("ip", "y")]))
    assert [(log["family"], log["table"], len(log["chains"])) for log in logs] == [
        ("ip", "x", 2),
        ("ip6", "x", 1),
        ("ip", "y", 1),
    ]


def test_each_is_told_once() -> None:
    def body(neighbours_: Neighbours) -> None:
        for _ in range(3):
            neighbours_.came(near())
        neighbours_.came([*near(), *near("ip", "x", "late")])

    assert [log["chains"] for log in told(body)] == [["c (prerouting)"], ["late (prerouting)"]]


def test_who_makes_ever_new_ones_does_not_fill_the_log() -> None:
    def body(neighbours_: Neighbours) -> None:
        for number in range(10 * MAX_TOLD):
            neighbours_.came(near("ip", f"t{number}"))

    counts = Counter(log["event"] for log in told(body))
    assert counts == {"nat_neighbour": MAX_TOLD, "nat_neighbours_too_many": 1}


def test_a_kernel_that_does_not_say_is_no_warning() -> None:
    assert [(log["event"], log["log_level"]) for log in told(Neighbours.look)] == [("nat_neighbours_not_read", "debug")]


def test_no_program_is_known_twice() -> None:
    assert told_by.KUBE_PROXY not in told_by._OWNERS
    assert len({told_by._CALM, told_by._ALARM, told_by._RIVAL}) == 3


# -- Neighbours as they are --------------------------------------------------------------------------------------------


def iptables(namespace: Namespace, *chains: str) -> None:
    """Chains in iptables' nat tables, each with a rule, and jumped to."""
    rules = "".join(f":{c} - [0:0]\n-A PREROUTING -j {c}\n-A {c} -j RETURN\n" for c in chains)
    for command in ("iptables-nft-restore", "ip6tables-nft-restore"):
        done = namespace.run(command, "--noflush", stdin=f"*nat\n:POSTROUTING ACCEPT\n:OUTPUT ACCEPT\n{rules}COMMIT\n")
        assert done.returncode == 0, done.stderr


def firewalld(namespace: Namespace) -> None:
    chains = (
        "chain nat_PREROUTING { type nat hook prerouting priority dstnat + 10; jump z; }\n"
        "chain nat_POSTROUTING { type nat hook postrouting priority srcnat + 10; jump z; }\n"
        "chain nat_OUTPUT { type nat hook output priority -90; jump z; }\n"
        "chain filter_FORWARD { type filter hook forward priority filter + 10; ct state established,related accept; }\n"
    )
    namespace.nft("-f", "-", stdin=f"table inet firewalld {{ chain z {{ }}\n {chains} }}")


def newer(namespace: Namespace) -> None:
    """What a later nft may write: an expression, flags and user data that nothing here knows."""
    unknown = attribute(1, b"\xff") + bytes([200, 3, 1, 2, 3])
    family = 1
    hook = nested(4, u32(1, 0), u32(2, -100))
    last = nested(1, text(1, "last"), nested(2))
    bodies = [
        (NEWTABLE, text(1, "newer") + attribute(6, unknown)),
        (NEWCHAIN, text(1, "newer") + text(3, "c") + hook + text(7, "nat") + attribute(12, unknown)),
        (
            NEWSET,
            text(1, "newer") + text(2, "s") + u32(3, 0) + u32(4, 200) + u32(5, 4) + u32(10, 1) + attribute(13, unknown),
        ),
        (NEWRULE, text(1, "newer") + text(2, "c") + nested(4, last) + attribute(7, unknown)),
    ]
    data = batch_mark(BATCH_BEGIN, 1)
    for sequence, (kind, body) in enumerate(bodies, 2):
        flags = NLM_F_CREATE | NLM_F_APPEND | NLM_F_ACK
        data += message(kind, flags, sequence, family, body)

    def send() -> None:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as sock:
            sock.settimeout(10)
            sock.send(data + batch_mark(BATCH_END, 9))
            left = len(bodies)
            while left:
                for reply in messages(sock.recv(1 << 16)):
                    assert error_of(reply)[0] == 0, (reply.sequence, os.strerror(error_of(reply)[0]))
                    left -= 1

    namespace.inside(send)


RULES = 50_000


def many(namespace: Namespace, count: int = RULES) -> None:
    rules = "".join(f"ip saddr 10.{i >> 16}.{i >> 8 & 255}.{i & 255} counter accept\n" for i in range(count))
    namespace.nft("-f", "-", stdin=f"table ip many {{ chain c {{\n{rules} }}\n}}")


@needs_root
@pytest.mark.parametrize(
    ("chains", "users"),
    [
        ([], []),
        (["cali-PREROUTING", "cali-OUTPUT"], ["Calico"]),
        (["OLD_CILIUM_PRE_nat"], ["Cilium (left over)"]),
        (["KUBE-SERVICES", "KUBE-KUBELET-CANARY", "DOCKER"], ["kube-proxy", "kubelet", "Docker"]),
    ],
)
def test_iptables_is_nothing_to_worry_about_but_for_kube_proxy_s(
    namespace: Namespace, chains: list[str], users: list[str]
) -> None:
    namespace.run("iptables-nft", "-t", "nat", "-A", "PREROUTING", "-j", "RETURN")
    iptables(namespace, *chains)
    with capture_logs() as logs:
        namespace.inside(lambda: Neighbours().look())
    assert {log["log_level"] for log in logs} == {"warning" if "kube-proxy" in users else "info"}
    assert {(log["family"], log["table"], log["program"]) for log in logs} >= {("ip", "nat", "iptables")}
    by_family = {log["family"]: log["used_by"] for log in logs}
    assert by_family["ip"] == users


@needs_root
def test_firewalld_stands_elsewhere(namespace: Namespace) -> None:
    firewalld(namespace)
    assert look(namespace) == []


@needs_root
def test_a_table_of_a_newer_nft(namespace: Namespace) -> None:
    newer(namespace)
    assert look(namespace) == [Neighbour("inet", "newer", "c", "prerouting")]


@needs_root
def test_of_thousands_of_chains_only_base_chains_count(namespace: Namespace) -> None:
    chains = "".join(f"chain KUBE-SVC-{i} {{ ip daddr 10.0.0.1 accept\n }}\n" for i in range(5000))
    base = "".join(f"chain b{i} {{ type nat hook prerouting priority -100; }}\n" for i in range(300))
    namespace.nft("-f", "-", stdin=f"table ip t {{ {chains} {base} }}")
    assert len(look(namespace)) == 256


# -- No effect ---------------------------------------------------------------------------------------------------------


class Counted:
    """How many messages of each kind kernels have sent us."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds: Counter[int] = Counter()
        for module in (kernel_module, netlink_socket):
            monkeypatch.setattr(module, "messages", self._messages)

    def _messages(self, data: bytes) -> Iterator[Message]:
        for one in messages(data):
            self.kinds[one.kind] += 1
            yield one

    def take(self) -> Counter[int]:
        kinds, self.kinds = self.kinds, Counter()
        return kinds


def life(namespace: Namespace, counted: Counted) -> list[tuple[str, list[Any], Counter[int]]]:
    """What an agent commits, and what it reads for that, at each step of its life."""
    steps: list[tuple[str, list[Any], Counter[int]]] = []
    cluster: dict[Any, Any] = {}
    watch = namespace.inside(lambda: KernelWatch(namespace.kernel.port))

    def step(name: str, agent: Agent, *events: Event) -> None:
        with capture_logs() as logs:
            agent.handle(events)
        steps.append(
            (name, [(log["event"], log.get("operations"), log.get("by", "")[:3]) for log in logs], counted.take())
        )

    def heard() -> TablesTouched:
        """What the watch tells of the tables, when all has been told."""
        found = []
        while told := watch.read(0.3):
            found += told
        return TablesTouched(tuple(found))

    remember(cluster, *WEB)
    counted.take()
    agent = Agent(State(NODE_NAME), namespace.kernel, Inbox())
    step("start", agent, *listing(cluster))
    change = put(service("new", "10.96.0.9"), endpoint_slice("new", "10.244.0.3", "10.244.0.4"))
    remember(cluster, *change)
    step("sync", agent, *change)
    namespace.nft("flush", "chain", "ip", "kube-proxy-nft", "services")
    step("repair of a chain", agent, heard())
    namespace.nft("delete", "table", "ip", "kube-proxy-nft")
    step("repair of a table", agent, heard())
    namespace.kernel.close()
    namespace.kernel = namespace.inside(Kernel)
    step("restart", Agent(State(NODE_NAME), namespace.kernel, Inbox()), *listing(cluster))
    watch.close()
    return steps


CHAIN = 10 << 8 | NEWCHAIN


@needs_root
def test_none_of_them_has_an_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same operations, and the same messages read, at each step, among 50,000 foreign rules as in an empty namespace.
    Chains are all that may be more: the kernel lists those of all tables of a family at once."""
    lives = []
    for is_crowded in (False, True):
        namespace = Namespace()
        if is_crowded:
            newer(namespace)
            firewalld(namespace)
            iptables(namespace, "cali-PREROUTING", "cali-nat", "OLD_CILIUM_PRE_nat", "KUBE-SERVICES")
            many(namespace)
        lives.append(life(namespace, Counted(monkeypatch)))
        namespace.close()
    for (name, done, read), (_, done_crowded, read_crowded) in zip(*lives, strict=True):
        assert done == done_crowded, name
        foreign = read_crowded[CHAIN] - read[CHAIN]
        assert 0 <= foreign <= 2 * 20, name
        assert read_crowded - Counter({CHAIN: foreign}) == read, name
    assert [done for _, done, _ in lives[0]][1:3] == [
        [("committed", lives[0][1][1][0][1], "")],
        [("tables_mended", lives[0][2][1][0][1], "nft")],
    ]


@needs_root
def test_a_firewall_that_loads_50_000_rules_is_no_reason_to_look(namespace: Namespace) -> None:
    """Nothing that is told is lost, though it comes all at once."""
    watch = namespace.inside(lambda: KernelWatch(namespace.kernel.port))
    for layout in LAYOUTS.values():
        namespace.kernel.commit(create(layout, Options(), ()))
    many(namespace)
    namespace.nft("delete", "table", "ip", "many")
    assert watch.read(1.0) == []
    namespace.nft("add", "element", "ip", "kube-proxy-nft", "cluster-ips", "{ 10.96.0.1 }")
    assert watch.read(10.0)
    watch.close()


# -- The agent ---------------------------------------------------------------------------------------------------------


@needs_root
def test_the_agent_tells_of_those_that_are_there_and_of_those_that_come(node: Node, manifests: Path) -> None:
    (manifests / "all.json").write_text(list_of(service("web", "10.96.0.1"), endpoint_slice("web", "10.244.0.1")))
    node.namespace.run("iptables-nft", "-t", "nat", "-A", "PREROUTING", "-j", "RETURN")
    node.start("--manifests", manifests)
    node.logged("nat_neighbour")
    node.namespace.nft("add table ip kube-proxy; add chain ip kube-proxy x { type nat hook output priority -100; }")
    node.logged("nat_neighbour", 2)
    node.namespace.nft("add table ip calm; add chain ip calm x { type nat hook output priority -150; }")
    node.namespace.nft(
        "delete chain ip kube-proxy x; add chain ip kube-proxy x { type nat hook output priority -100; }"
    )
    node.namespace.nft("add table inet mine; add chain inet mine x { type nat hook output priority -100; }")
    node.logged("nat_neighbour", 3)
    found = [(log["level"], log["program"], log["table"]) for log in node.events("nat_neighbour")]
    assert found == [
        ("info", "iptables", "nat"),
        ("warning", "kube-proxy", "kube-proxy"),
        ("warning", "unknown", "mine"),
    ]
    assert node.events("tables_mended") == []
