"""The bytes: read by an independent decoder (pyroute2's), and by our own reader when they are damaged."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.nfnetlink.nftsocket import (
    NFT_MSG_NEWRULE,
    NFT_MSG_NEWSETELEM,
    nft_rule_msg,
    nft_set_elem_list_msg,
)

from rules import wire_expressions
from rules.diff import scratch
from rules.elements import ServicePort, endpoint, service_key
from rules.layout import LAYOUTS, Options
from rules.netlink import HEADER_SIZE, attributes, error_of, messages
from rules.objects import Family
from rules.tables import create
from rules.transaction import AddElement, AddRule, Operation
from rules.wire import MAX_ELEMENTS_BYTES, encode

V4 = LAYOUTS[Family.IPV4]
KEY = service_key(bytes([10, 96, 0, 1]), 6, 80)


def ports(count: int) -> list[ServicePort]:
    return [
        ServicePort(
            service_key((0x0A600000 + i).to_bytes(4), 6, 80),
            f"default/service-{i}:http",
            tuple(endpoint((0x0AF40000 + j).to_bytes(4), 8080) for j in range(3)),
        )
        for i in range(count)
    ]


def decoded(operations: list[Operation], kind: int, cls: Any) -> list[Any]:
    found = []
    for reply in messages(encode(operations).data):
        if reply.kind & 0xFF == kind and reply.kind >> 8 == 10:
            raw = struct.pack("=IHHII", 16 + len(reply.body), reply.kind, reply.flags, reply.sequence, 0) + bytes(
                reply.body
            )
            message = cls(raw)
            message.decode()
            found.append(message)
    return found


def test_pyroute2_reads_our_rules() -> None:
    rules = [o.rule for o in create(V4, Options(), ()) if isinstance(o, AddRule)]
    read = decoded(create(V4, Options(), ()), NFT_MSG_NEWRULE, nft_rule_msg)
    assert len(read) == len(rules)
    for rule, message in zip(rules, read, strict=True):
        assert message.get_attr("NFTA_RULE_CHAIN") == rule.chain.name
        names = [x.get_attr("NFTA_EXPR_NAME") for x in message.get_attr("NFTA_RULE_EXPRESSIONS")]
        assert names == [x.NAME for x in rule.expressions]


def test_pyroute2_reads_our_elements() -> None:
    operations = [o for o in scratch(Family.IPV4, ports(5)).operations if o.set is V4.addresses.endpoints]  # type: ignore[union-attr]
    read = []
    for message in decoded(operations, NFT_MSG_NEWSETELEM, nft_set_elem_list_msg):
        assert message.get_attr("NFTA_SET_ELEM_LIST_SET") == "endpoints"
        for element in message.get_attr("NFTA_SET_ELEM_LIST_ELEMENTS"):
            key = element.get_attr("NFTA_SET_ELEM_KEY").get_attr("NFTA_DATA_VALUE")
            data = element.get_attr("NFTA_SET_ELEM_DATA").get_attr("NFTA_DATA_VALUE")
            read.append((bytes(key), bytes(data)))
    assert read == [(o.key, o.data) for o in operations]  # type: ignore[union-attr]


def test_only_the_last_message_asks_for_an_acknowledgement() -> None:
    batch = encode([*create(V4, Options(), ()), *scratch(Family.IPV4, ports(5)).operations])
    kinds = [(m.kind, bool(m.flags & 4)) for m in messages(batch.data)]
    assert kinds[0] == (0x10, False)
    assert kinds[-1] == (0x11, False)
    assert [wants for _, wants in kinds[1:-1]] == [False] * (len(kinds) - 3) + [True]
    assert [m.sequence for m in messages(batch.data)] == list(range(1, len(kinds) + 1))


def test_no_attribute_outgrows_its_sixteen_bits() -> None:
    batch = encode(scratch(Family.IPV4, ports(5000)).operations)
    sizes = [len(m.body) for m in messages(batch.data)]
    assert max(sizes) <= MAX_ELEMENTS_BYTES + 100
    assert sum(sizes) > 5000 * 3 * 40
    counted = sum(count for _, _, count in batch.messages)
    assert counted == len(batch.operations)


@pytest.mark.parametrize("number", [0, 1, 1400, 1500, 2999, 14_999])
def test_an_offset_in_a_message_leads_back_to_its_element(number: int) -> None:
    operations = scratch(Family.IPV4, ports(5000)).operations
    batch = encode(operations, first=7)
    for position, (start, first, count) in enumerate(batch.messages):
        if first <= number < first + count:
            wanted = operations[number]
            assert isinstance(wanted, AddElement)
            offset = batch.data.index(wanted.key, start) - start
            assert batch.at(8 + position, offset) == (wanted, "")
            return
    pytest.fail("no message has the element")


def test_an_offset_in_a_rule_leads_to_its_expression() -> None:
    operations: list[Operation] = [o for o in create(V4, Options(), ()) if isinstance(o, AddRule)]
    batch = encode(operations)
    start, first, _ = next(m for m in batch.messages if operations[m[1]].rule.chain.name == "pick-2")  # type: ignore[union-attr]
    offset = batch.data.index(b"numgen\0", start) - start - 8  # the kernel points at the expression's own attribute
    assert batch.at(2 + batch.messages.index((start, first, 1)), offset) == (operations[first], "numgen")


def test_nothing_to_send_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an operation"):
        encode([])


@given(st.data())
def test_damaged_messages_are_refused_or_read_but_never_crash(data: st.DataObject) -> None:
    good = bytearray(
        encode([*create(V4, Options(), ())[:40], AddElement(V4.addresses.endpoints, KEY + bytes(4), bytes(8))]).data
    )
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))])
    try:
        for message in messages(cut):
            if len(message.body) >= 4:
                for _, value in attributes(message.body[4:]):
                    for _, inner in attributes(value):
                        wire_expressions.decode(inner)
    except ValueError:
        pass


def test_an_error_with_an_offset_is_read() -> None:
    extended = struct.pack("=HHI", 8, 2, 1234)
    body = struct.pack("=i", -17) + bytes(16) + extended
    [reply] = messages(struct.pack("=IHHII", 16 + len(body), 2, 0x300, 5, 0) + body)
    assert error_of(reply) == (17, 1234)
    assert HEADER_SIZE == 20


def test_elements_fill_their_messages() -> None:
    batch = encode(scratch(Family.IPV4, ports(5000)).operations)
    assert len(batch.messages) <= len(batch.data) / MAX_ELEMENTS_BYTES + len(V4.sets)


def test_without_an_offset_nobody_is_blamed_alone() -> None:
    operations = scratch(Family.IPV4, ports(5)).operations
    batch = encode(operations)
    sequence = 2 + next(i for i, (_, _, count) in enumerate(batch.messages) if count > 1)
    blamed, what = batch.at(sequence, 0)
    assert blamed is None
    assert "elements of" in what
