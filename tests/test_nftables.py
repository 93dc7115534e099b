"""How nftables behaves: the kernel and the fake are held to the same answers."""

from __future__ import annotations

import errno
from ipaddress import ip_network
from typing import Any

import pytest

from rules import expressions as e
from rules.elements import index, service_key
from rules.errors import TransactionError
from rules.layout import LAYOUTS, Options
from rules.objects import OUTPUT, Chain, Family, Field, Rule, Set, Table
from rules.statements.matches import InSet, to_destination
from rules.statements.verdicts import drop, goto, jump
from rules.tables import change_service_cidrs, create, remove, replace
from rules.transaction import (
    AddChain,
    AddElement,
    AddRule,
    AddSet,
    AddTable,
    DeleteElement,
    DeleteTable,
    FlushChain,
    Operation,
)

TABLE = Table(Family.IPV4, "test")
CHAIN = Chain(TABLE, "one")
OTHER = Chain(TABLE, "two")
SET = Set(TABLE, "set", (Field.IP_DADDR,))
MAP = Set(TABLE, "map", (Field.IP_DADDR, Field.DPORT), (Field.IP_DADDR, Field.DPORT))
KEY = bytes([10, 0, 0, 1])
MAP_KEY, DATA, OTHER_DATA = KEY + b"\0\x50\0\0", KEY + b"\x1f\x90\0\0", KEY + b"\x1f\x91\0\0"
BASE: list[Operation] = [AddTable(TABLE), AddChain(CHAIN), AddSet(SET), AddSet(MAP)]
V4, V6 = LAYOUTS[Family.IPV4], LAYOUTS[Family.IPV6]
OPTIONS = Options(local_networks=(ip_network("10.244.0.0/16"), ip_network("fd44::/48")))
CIDRS = (ip_network("10.96.0.0/12"), ip_network("fd00:10:96::/112"))


def refusals(nftables: Any, *operations: Operation) -> list[tuple[Operation | None, int]]:
    """What is refused and with which errno; nothing of the transaction may have been applied."""
    before = repr(nftables.dump(TABLE))
    with pytest.raises(TransactionError) as caught:
        nftables.commit(operations)
    assert repr(nftables.dump(TABLE)) == before
    return [(failure.operation, failure.errno) for failure in caught.value.failures]


def test_nothing_is_there_at_first(nftables: Any) -> None:
    assert nftables.dump(TABLE) is None


def test_no_operations_is_nothing_to_do(nftables: Any) -> None:
    assert nftables.commit([]) == 0


def test_adding_what_is_there_changes_nothing(nftables: Any) -> None:
    nftables.commit(BASE)
    nftables.commit([*BASE, AddElement(SET, KEY), AddElement(MAP, MAP_KEY, DATA)])
    nftables.commit([*BASE, AddElement(SET, KEY), AddElement(MAP, MAP_KEY, DATA)])
    state = nftables.dump(TABLE)
    assert state.sets["set"].elements == {KEY: (b"", "")}
    assert state.sets["map"].elements == {MAP_KEY: (DATA, "")}


@pytest.mark.parametrize(
    "operation",
    [
        DeleteTable(TABLE),
        AddChain(CHAIN),
        AddSet(SET),
        FlushChain(CHAIN),
        AddRule(Rule(CHAIN, (drop(),))),
        AddElement(SET, KEY),
        DeleteElement(SET, KEY),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_without_the_table_nothing_is_found(nftables: Any, operation: Operation) -> None:
    assert refusals(nftables, operation) == [(operation, errno.ENOENT)]


@pytest.mark.parametrize(
    "operation",
    [
        FlushChain(OTHER),
        AddRule(Rule(OTHER, (drop(),))),
        AddRule(Rule(CHAIN, (jump("two"),))),
        AddRule(Rule(CHAIN, (goto("two"),))),
        AddRule(Rule(CHAIN, (InSet(Set(TABLE, "nosuch", (Field.IP_DADDR,))), drop()))),
        AddElement(Set(TABLE, "nosuch", (Field.IP_DADDR,)), KEY),
        DeleteElement(SET, KEY),
        DeleteElement(MAP, MAP_KEY),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_what_is_missing_in_the_table_is_named(nftables: Any, operation: Operation) -> None:
    nftables.commit(BASE)
    assert refusals(nftables, operation) == [(operation, errno.ENOENT)]


CLASH = {errno.EEXIST, errno.EBUSY}
"""A key that is there with other data: EEXIST here, EBUSY on older kernels."""


def test_a_key_with_other_data_clashes(nftables: Any) -> None:
    nftables.commit([*BASE, AddElement(MAP, MAP_KEY, DATA)])
    clash = AddElement(MAP, MAP_KEY, OTHER_DATA)
    [(operation, number)] = refusals(nftables, clash)
    assert operation == clash
    assert number in CLASH


def test_a_key_may_go_and_come_back_in_one_transaction(nftables: Any) -> None:
    nftables.commit([*BASE, AddElement(MAP, MAP_KEY, DATA)])
    nftables.commit([DeleteElement(MAP, MAP_KEY), AddElement(MAP, MAP_KEY, OTHER_DATA)])
    assert nftables.dump(TABLE).sets["map"].elements == {MAP_KEY: (OTHER_DATA, "")}


def test_a_jump_to_a_base_chain_is_refused(nftables: Any) -> None:
    nftables.commit([*BASE, AddChain(Chain(TABLE, "hooked", OUTPUT))])
    rule = AddRule(Rule(CHAIN, (jump("hooked"),)))
    assert refusals(nftables, rule) == [(rule, errno.EOPNOTSUPP)]


def test_a_set_of_another_type_clashes(nftables: Any) -> None:
    nftables.commit(BASE)
    other = AddSet(Set(TABLE, "set", (Field.IP_DADDR, Field.DPORT)))
    assert refusals(nftables, other) == [(other, errno.EEXIST)]


def test_a_key_of_the_wrong_size_never_reaches_the_kernel(nftables: Any) -> None:
    nftables.commit(BASE)
    with pytest.raises(ValueError, match="a key of set has 4 bytes, not 8"):
        nftables.commit([AddElement(SET, KEY + b"\0\0\0\0")])


def test_the_bad_one_among_many_elements_is_named(nftables: Any) -> None:
    """Two messages' worth of elements, one of them bad, in the second."""
    nftables.commit([*BASE, AddElement(MAP, MAP_KEY, DATA)])
    many: list[Operation] = [AddElement(MAP, (2**24 + i).to_bytes(4) + b"\0\x50\0\0", DATA) for i in range(3000)]
    clash = AddElement(MAP, MAP_KEY, OTHER_DATA)
    many.insert(2500, clash)
    [(operation, number)] = refusals(nftables, *many)
    assert operation == clash
    assert number in CLASH


def test_every_message_that_fails_is_named(nftables: Any) -> None:
    nftables.commit(BASE)
    first, second = DeleteElement(SET, KEY), AddRule(Rule(CHAIN, (goto("two"),)))
    assert refusals(nftables, first, second) == [(first, errno.ENOENT), (second, errno.ENOENT)]


def test_rules_stand_in_the_order_in_which_they_came(nftables: Any) -> None:
    nftables.commit([*BASE, AddChain(OTHER), AddRule(Rule(CHAIN, (goto("two"),))), AddRule(Rule(CHAIN, (drop(),)))])
    assert nftables.dump(TABLE).chains["one"].rules == [
        (e.Immediate((e.Verdict.GOTO, "two")),),
        (e.Immediate((e.Verdict.DROP, "")),),
    ]
    nftables.commit([FlushChain(CHAIN), AddRule(Rule(CHAIN, (InSet(SET), drop())))])
    assert nftables.dump(TABLE).chains["one"].rules == [Rule(CHAIN, (InSet(SET), drop())).expressions]


def test_comments_stay_with_their_elements(nftables: Any) -> None:
    nftables.commit([*BASE, AddElement(SET, KEY, comment="default/web:http")])
    assert nftables.dump(TABLE).sets["set"].elements == {KEY: (b"", "default/web:http")}


@pytest.mark.parametrize("layout", [V4, V6], ids=["ip", "ip6"])
def test_the_layout_reads_back_as_it_was_written(nftables: Any, layout: Any) -> None:
    """Each rule's expressions, hook and set type: the dump is what an audit compares."""
    nftables.commit(create(layout, OPTIONS, CIDRS))
    state = nftables.dump(layout.table)
    expected = {chain.name: [rule.expressions for rule in rules] for chain, rules in layout.rules(OPTIONS, CIDRS)}
    assert {name: chain.rules for name, chain in state.chains.items()} == expected
    assert {name for name, chain in state.chains.items() if chain.hook} == {"prerouting", "output", "postrouting"}
    assert set(state.sets) == {set_.name for set_ in layout.sets}


def test_replacing_a_table_is_one_transaction(nftables: Any) -> None:
    key = service_key(KEY, 6, 80)
    element = AddElement(V4.addresses.endpoints, key + index(0), DATA)
    nftables.commit([*replace(V4, OPTIONS, CIDRS), element])
    nftables.commit([*replace(V4, OPTIONS, CIDRS), AddElement(V4.addresses.endpoints, key + index(1), DATA)])
    assert list(nftables.dump(V4.table).sets["endpoints"].elements) == [key + index(1)]


def test_removing_a_table_works_whether_it_is_there_or_not(nftables: Any) -> None:
    nftables.commit(remove(V4))
    nftables.commit([*replace(V4, OPTIONS, CIDRS), *replace(V6, OPTIONS, CIDRS)])
    nftables.commit([*remove(V4), *remove(V6)])
    assert nftables.dump(V4.table) is None
    assert nftables.dump(V6.table) is None


def test_service_cidrs_change_alone(nftables: Any) -> None:
    nftables.commit(replace(V4, OPTIONS, CIDRS))
    nftables.commit(change_service_cidrs(V4, [ip_network("10.200.0.0/16"), ip_network("fd00::/112")]))
    expected = Rule(V4.unallocated, (to_destination(ip_network("10.200.0.0/16")), drop())).expressions
    assert nftables.dump(V4.table).chains["unallocated"].rules == [expected]
    nftables.commit(change_service_cidrs(V4, []))
    assert nftables.dump(V4.table).chains["unallocated"].rules == []
