"""What a kernel lacks is found and named before anything is programmed, and nobody notices that it was tried."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from proxy.errors import KernelTooOld, NoPermission, UserError
from proxy.kernel_check import check
from rules import expressions as e
from rules import probe as probing
from rules.dump import SetState
from rules.errors import Failure, TransactionError
from rules.fake import FakeKernel
from rules.groups import Group
from rules.kernel import Kernel
from rules.layout import LAYOUTS, Layout, Options
from rules.netlink import NETLINK_NETFILTER, NFNLGRP_NFTABLES, NLM_F_ACK, attributes, message
from rules.objects import Chain, Family, Hook, Set
from rules.probe import expressions, is_too_old, kind, probe, sets
from rules.rehearsal import IMPOSSIBLE, rehearse
from rules.tables import create
from rules.transaction import AddChain, AddElement, AddRule, AddSet, AddTable, Operation
from tests.netns import Namespace, in_new_namespace

V4, V6 = LAYOUTS[Family.IPV4], LAYOUTS[Family.IPV6]
BOTH = tuple(Family)
T = TypeVar("T")


class Lacking(FakeKernel):
    """Refuses what `lacks` says, as the kernel refuses what it does not have: each operation on its own."""

    def __init__(self, lacks: Callable[[Operation], int], whole: Failure | None = None) -> None:
        super().__init__()
        self.lacks, self.whole = lacks, whole

    def commit(self, operations: Sequence[Operation]) -> int:
        if self.whole:
            raise TransactionError((self.whole,))
        failures = [Failure(operation, number) for operation in operations if (number := self.lacks(operation))]
        try:
            return super().commit(operations)
        except TransactionError as error:
            raise TransactionError((*failures, *error.failures)) from None


def family_of(operation: Operation) -> Family | None:
    match operation:
        case AddTable(table):
            return table.family
        case AddChain(chain):
            return chain.table.family
        case AddRule(rule):
            return rule.chain.table.family
        case AddSet() | AddElement():
            return operation.set.table.family
    return None


def has_all(operation: Operation) -> int:
    return 0


# Nothing is missing here, and nothing is left behind.


def test_this_kernel_has_everything(namespace: Namespace) -> None:
    assert probe(namespace.kernel, BOTH) == []
    assert check(namespace.kernel, BOTH) == {}


def test_the_fake_has_everything() -> None:
    assert check(FakeKernel(), BOTH, "6.1.0") == {}


def test_nobody_notices_that_it_was_tried(namespace: Namespace) -> None:
    def listen() -> socket.socket:
        listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        listener.bind((0, 1 << NFNLGRP_NFTABLES - 1))
        listener.setblocking(False)
        return listener

    with namespace.inside(listen) as listener:
        namespace.kernel.commit([AddTable(V4.table)])
        assert drain(listener)
        before = namespace.nft("list", "ruleset"), generation(namespace.kernel)
        probe(namespace.kernel, BOTH)
        assert rehearse(namespace.kernel, create(V6, Options(), ())) is None
        assert drain(listener) == 0
        assert (namespace.nft("list", "ruleset"), generation(namespace.kernel)) == before
        namespace.kernel.commit([AddTable(V6.table)])
        assert drain(listener)
        assert generation(namespace.kernel) != before[1]


def drain(listener: socket.socket) -> int:
    """How many datagrams were waiting."""
    count = 0
    try:
        while listener.recv(1 << 16):
            count += 1
    except BlockingIOError:
        pass
    return count


def generation(kernel: Kernel) -> bytes:
    """The ruleset's generation, as NFT_MSG_GETGEN gives it."""
    [reply] = kernel._ask(message(16, NLM_F_ACK, kernel._next_sequence(), 0, b""))
    return bytes(dict(attributes(reply.body[4:]))[1])


def test_it_takes_one_refused_transaction() -> None:
    tries = []

    class Counting(FakeKernel):
        def commit(self, operations: Sequence[Operation]) -> int:
            tries.append(operations)
            return super().commit(operations)

    kernel = Counting()
    probe(kernel, BOTH)
    assert len(tries) == 1
    assert kernel.transactions == 0
    assert tries[0][-1] == IMPOSSIBLE


# It tries what is used.


def used(layout: Layout) -> Iterator[Operation]:
    network = ipaddress.ip_network("10.0.0.0/12" if layout.family is Family.IPV4 else "fd00::/12")
    options = [Options(local_networks=(network,)), Options(local_interface="x"), Options(masquerade_all=True)]
    for one in options:
        yield from create(layout, one, [network])
    for ports in (layout.addresses, layout.node_ports):
        for local in (False, True):
            for timeout in (0, 60):
                group = Group(ports, local, 2, timeout)
                yield AddSet(group.services)
                yield from (AddRule(rule) for _, rules in group.rules() for rule in rules)
            yield from map(AddRule, ports.turn_rules(local, 0, 3))


@pytest.mark.parametrize("layout", [V4, V6], ids=["ip", "ip6"])
def test_every_expression_that_is_used_is_tried(layout: Layout) -> None:
    tried = {kind(expression) for expression in expressions(layout)}
    needed = {
        kind(expression)
        for operation in used(layout)
        if isinstance(operation, AddRule)
        for expression in operation.rule.expressions
    }
    assert needed == tried


@pytest.mark.parametrize("layout", [V4, V6], ids=["ip", "ip6"])
def test_every_kind_of_set_and_chain_that_is_used_is_tried(layout: Layout) -> None:
    def shape(set_: Set) -> tuple[int, bool, bool]:
        return SetState.of(set_).flags, set_.verdict, len(set_.key) > 1

    assert {shape(o.set) for o in used(layout) if isinstance(o, AddSet)} == {shape(set_) for set_, _ in sets(layout)}
    hooks = {o.chain.hook for o in used(layout) if isinstance(o, AddChain)}
    tried = {o.chain.hook for o, _, _ in probing.features(layout) if isinstance(o, AddChain)}
    assert hooks == tried


# What the kernel does not have.


MODULES = {
    "fib": "CONFIG_NFT_FIB_IPV",
    "reject": "CONFIG_NFT_REJECT_IPV",
    "numgen": "CONFIG_NFT_NUMGEN",
    "hash": "CONFIG_NFT_HASH",
    "nat": "CONFIG_NFT_NAT",
    "masq": "CONFIG_NFT_MASQ",
    "ct": "CONFIG_NFT_CT",
}


@pytest.mark.parametrize("name", sorted(e.KNOWN.keys() - {"immediate"}))  # which fills the registers for the others
def test_an_expression_that_the_kernel_does_not_know_is_named(
    namespace: Namespace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel itself says so: it is asked for one of another name."""
    monkeypatch.setattr(e.KNOWN[name], "NAME", f"no-{name}")
    found = probe(namespace.kernel, BOTH)
    families = [family for family in Family if name != "byteorder" or family is Family.IPV6]
    option = MODULES.get(name, "CONFIG_NF_TABLES")
    numbers = {Family.IPV4: "4", Family.IPV6: "6"}
    wanted = {
        (f"expression 'no-{name}'", family, option + numbers[family] if option.endswith("IPV") else option)
        for family in families
    }
    if name == "ct":
        wanted |= {(f"expression 'no-{name}' for marks", family, "CONFIG_NF_CONNTRACK_MARK") for family in families}
    assert {(one.what, one.family, one.option) for one in found} == wanted
    assert {one.errno for one in found} == {errno.ENOENT}
    first = numbers[families[0]]
    with pytest.raises(KernelTooOld, match=f"no expression 'no-{name}' for IPv{first} .*No such file"):
        check(namespace.kernel, families)
    assert namespace.nft("list", "ruleset") == ""


def test_all_that_is_missing_is_named_at_once(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fib", "numgen", "masq"):
        monkeypatch.setattr(e.KNOWN[name], "NAME", f"no-{name}")
    monkeypatch.setattr(probing, "OUTPUT", Hook("output", 2, -100))  # no nat chain can stand there
    assert [(one.what, one.option, one.errno) for one in probe(namespace.kernel, [Family.IPV6])] == [
        ("nat chains at output", "CONFIG_NFT_NAT", errno.EOPNOTSUPP),
        ("expression 'no-fib'", "CONFIG_NFT_FIB_IPV6", errno.ENOENT),
        ("expression 'no-numgen'", "CONFIG_NFT_NUMGEN", errno.ENOENT),
        ("expression 'no-masq'", "CONFIG_NFT_MASQ", errno.ENOENT),
    ]


def test_a_set_that_the_kernel_does_not_take_is_named_and_not_its_look_ups(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set of ranges that does not say how long its fields are."""
    made = sets(V4)
    broken = [(replace(set_, interval=False, dynamic=0, key=()) if set_.interval else set_, w) for set_, w in made]
    monkeypatch.setattr(probing, "sets", lambda layout: broken)
    assert [one.what for one in probe(namespace.kernel, [Family.IPV4])] == ["sets of ranges of concatenations"]


def test_a_family_that_nftables_lacks_is_named_alone() -> None:
    def lacks(operation: Operation) -> int:
        if family_of(operation) is not Family.IPV6:
            return 0
        return errno.EOPNOTSUPP if isinstance(operation, AddTable) else errno.ENOENT

    kernel = Lacking(lacks)
    [missing] = probe(kernel, BOTH)
    assert (missing.what, missing.option) == ("tables", "CONFIG_NF_TABLES_IPV6")
    causes = check(kernel, BOTH, "6.1.0")
    assert causes == {
        Family.IPV6: "kernel 6.1.0 has no tables for IPv6 (CONFIG_NF_TABLES_IPV6: Operation not supported)"
    }


# What comes of it.


@pytest.mark.parametrize(
    ("lacking", "families", "left_out"),
    [
        ({Family.IPV6}, BOTH, {Family.IPV6}),
        ({Family.IPV6}, [Family.IPV6], None),
        ({Family.IPV4}, BOTH, None),
        ({Family.IPV4}, [Family.IPV6], set()),
        (set(Family), BOTH, None),
    ],
)
def test_ipv6_is_left_out_where_ipv4_works_and_anything_else_ends_the_agent(
    lacking: set[Family], families: Sequence[Family], left_out: set[Family] | None
) -> None:
    def lacks(operation: Operation) -> int:
        is_fib = isinstance(operation, AddRule) and isinstance(operation.rule.expressions[-1], e.Fib)
        return errno.ENOENT if is_fib and family_of(operation) in lacking else 0

    if left_out is not None:
        causes = check(Lacking(lacks), families, "6.1.0")
        assert causes.keys() == left_out
        assert all("CONFIG_NFT_FIB_IPV6" in cause for cause in causes.values())
        return
    with pytest.raises(KernelTooOld) as raised:
        check(Lacking(lacks), families, "6.1.0")
    assert raised.value.exit_code == 6
    assert all(f"CONFIG_NFT_FIB_IPV{4 if f is Family.IPV4 else 6}" in str(raised.value) for f in lacking)


@pytest.mark.parametrize(
    ("release", "too_old"),
    [
        ("5.12.19-amd64", True),
        ("5.13.0", False),
        ("5.13", False),
        ("4.18.0-553.el8.x86_64", True),
        ("6.1.0-49-amd64", False),
        ("6.18.44", False),
        ("10.0.0", False),
        ("mine", False),
        ("", False),
    ],
)
def test_an_old_kernel_is_named(release: str, too_old: bool) -> None:
    assert is_too_old(release) == too_old
    kernel = FakeKernel()
    if too_old:
        with pytest.raises(KernelTooOld, match=f"kernel {release}: it is older than Linux 5.13"):
            check(kernel, BOTH, release)
    else:
        check(kernel, BOTH, release)


@pytest.mark.parametrize(
    ("failure", "kind_of_error"),
    [(Failure(None, errno.EPERM), NoPermission), (Failure(None, errno.EOPNOTSUPP), KernelTooOld)],
)
def test_a_kernel_that_does_not_even_look(failure: Failure, kind_of_error: type[UserError]) -> None:
    with pytest.raises(kind_of_error):
        check(Lacking(has_all, failure), BOTH, "6.1.0")


def test_without_permission_it_says_so() -> None:
    """As another user: the socket is there, but its words have no weight."""

    def asks() -> type[Exception] | None:
        kernel = Kernel()
        pid = os.fork()
        if not pid:
            os.setgid(65534)
            os.setuid(65534)
            try:
                check(Kernel(), BOTH)
            except NoPermission as error:
                os._exit(error.exit_code)
            os._exit(0)
        kernel.close()
        return NoPermission if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == NoPermission.exit_code else None

    assert in_new_namespace(asks) is NoPermission


# Rehearsals.


@pytest.fixture
def element() -> AddElement:
    return AddElement(V4.addresses.endpoints, bytes(V4.addresses.endpoints.key_size), bytes(8))


def test_a_rehearsal_says_what_the_transaction_would(nftables: FakeKernel, element: AddElement) -> None:
    assert rehearse(nftables, []) is None
    assert rehearse(nftables, create(V4, Options(), ())) is None
    error = rehearse(nftables, [element])
    assert error is not None
    assert [(failure.operation, failure.errno) for failure in error.failures] == [(element, errno.ENOENT)]
    nftables.commit(create(V4, Options(), ()))
    assert rehearse(nftables, [element]) is None
    state = nftables.dump(V4.table)
    assert state is not None and not state.sets["endpoints"].elements
    nftables.commit([element])
    other = AddElement(element.set, element.key, bytes([1]) * 8)
    error = rehearse(nftables, [other, AddChain(Chain(V4.table, "more"))])
    assert error is not None and [failure.operation for failure in error.failures] == [other]
    assert state is not None and "more" not in state.chains


def test_the_table_whose_deletion_is_asked_for_cannot_exist(namespace: Namespace) -> None:
    with pytest.raises(TransactionError, match="x: Numerical result out of range"):
        namespace.kernel.commit([AddTable(IMPOSSIBLE.table)])
    namespace.kernel.commit([AddTable(replace(IMPOSSIBLE.table, name=IMPOSSIBLE.table.name[:-1]))])
    assert rehearse(namespace.kernel, [AddTable(V4.table)]) is None
    assert not namespace.kernel.has(V4.table)
