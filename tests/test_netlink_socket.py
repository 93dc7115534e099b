"""The replies to one request, as they come from a socket, and those who must not take a disturbed listing for true."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from typing import TypeVar

import pytest

from proxy import node_addresses
from proxy.conntrack_socket import FlowTable
from proxy.detect.netlink import Netlink
from rules.dump import TableState, dump_request
from rules.errors import KernelUnreachable
from rules.foreign import Changed, Reader
from rules.kernel import Kernel
from rules.layout import LAYOUTS
from rules.lookout import Lookout
from rules.netlink import (
    GETSET,
    GETSETELEM,
    NEWSETELEM,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLMSG_DONE,
    NLMSG_ERROR,
    SUBSYSTEM,
    message,
    text,
)
from rules.netlink_socket import DAMAGED, Replies
from rules.objects import Family
from rules.table_reader import TableReader
from rules.trace_socket import TraceSocket
from tests.dataplanes import needs_root
from tests.fuzz.on_netlink import Replay
from tests.netns import Namespace

T = TypeVar("T")

TABLE = LAYOUTS[Family.IPV4].table
REQUEST = message(GETSET, NLM_F_DUMP, 7, Family.IPV4, b"")


def reply(kind: int, body: bytes = bytes(4), flags: int = 2) -> bytes:
    """As the kernel sends it, but for the sequence number, which is the one of the request."""
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body


DONE = reply(NLMSG_DONE)
DISTURBED = reply(NLMSG_DONE, flags=2 | NLM_F_DUMP_INTR)


def replies(*datagrams: bytes, errors: dict[int, int] | None = None) -> Replies:
    return Replies(Replay(datagrams), REQUEST, errors or {})  # type: ignore[arg-type]


def test_a_list_for_each_datagram_up_to_the_end_which_waits_for_no_more() -> None:
    asked = replies(reply(20, b"one!") + reply(20, b"two!"), reply(20, b"last") + DONE, reply(20, b"more"))
    assert [[bytes(one.body) for one in piece] for piece in asked] == [[b"one!", b"two!"], [b"last"]]
    assert not asked.disturbed
    assert list(asked) == []


def test_a_change_may_be_told_with_the_end_only() -> None:
    asked = replies(reply(20), DISTURBED)
    assert len(list(asked)) == 2 and asked.disturbed


def test_a_subsystem_has_errors_of_its_own() -> None:
    own = reply(NLMSG_ERROR, struct.pack("=i", -4097) + bytes(16))
    with pytest.raises(FileExistsError):
        next(replies(own, errors={4097: errno.EEXIST}))
    with pytest.raises(ValueError, match="no error"):
        next(replies(own))


def test_after_a_refusal_nothing_is_waited_for() -> None:
    asked = replies(reply(NLMSG_ERROR, struct.pack("=i", -errno.EPERM) + bytes(16)))
    with pytest.raises(PermissionError):
        next(asked)
    assert list(asked) == []


def test_after_a_damaged_datagram_one_may_go_on() -> None:
    asked = replies(reply(20)[:-1], reply(20) + DONE)
    with pytest.raises(ValueError, match="claims"):
        next(asked)
    assert len(list(asked)) == 1


def test_a_table_of_ours_that_changes_during_each_read_is_not_read() -> None:
    kernel = Kernel.__new__(Kernel)
    kernel._socket, kernel._sequence = Replay([DISTURBED] * 10), 0  # type: ignore[assignment]
    with pytest.raises(KernelUnreachable, match="changed during each of 10 reads"):
        kernel.dump(TABLE)


def test_a_foreign_table_that_changes_is_to_be_read_again() -> None:
    reader = Reader.__new__(Reader)
    reader._socket, reader._sequence = Replay([DISTURBED]), 0  # type: ignore[assignment]
    with pytest.raises(Changed):
        reader.sets(TABLE)


# -- A dump that begins well, and fails --------------------------------------------------------------------------------

FAILED = reply(NLMSG_DONE, struct.pack("=i", -errno.ENOMEM))


def test_a_dump_may_fail_where_it_ends() -> None:
    asked = replies(reply(20), reply(20) + FAILED)
    assert len(next(asked)) == 1
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        next(asked)
    assert list(asked) == []


def test_it_may_be_an_error_of_a_subsystem() -> None:
    with pytest.raises(FileExistsError):
        next(replies(reply(NLMSG_DONE, struct.pack("=i", -4097)), errors={4097: errno.EEXIST}))


@pytest.mark.parametrize("body", [b"", struct.pack("=i", 7), struct.pack("=i", -5000)])
def test_an_end_that_cannot_be(body: bytes) -> None:
    with pytest.raises(DAMAGED):
        next(replies(reply(NLMSG_DONE, body)))


def over(kind: type[T], **more: object) -> T:
    """One of these, as if the dump failed after a datagram that none of them takes an interest in."""
    made = kind.__new__(kind)
    for name, value in ({"_socket": Replay([NOTHING, FAILED]), "_sequence": 0} | more).items():
        setattr(made, name, value)
    return made


NOTHING = reply(SUBSYSTEM << 8 | NEWSETELEM, bytes([2, 0, 0, 0]) + text(1, "another table"))
SET_ = LAYOUTS[Family.IPV4].cluster_ips


@pytest.mark.parametrize(
    "read",
    [
        lambda: over(Kernel)._read(TABLE, "any"),
        lambda: list(over(TableReader).elements(SET_)),
        lambda: list(over(TableReader).chains(TABLE)),
        lambda: over(TableReader).packets(SET_),
        lambda: over(Reader).sets(TABLE),
        lambda: over(Reader).rules(TABLE, "any"),
        lambda: over(Netlink, _disturbed=False).dump(18, b"", bytes),
        lambda: list(over(FlowTable).flows(Family.IPV4)),
        lambda: node_addresses._read_once(Replay([FAILED]), 1, {}),  # type: ignore[arg-type]
    ],
)
def test_whoever_lists_does_not_take_it_for_all_there_is(read: Callable[[], object]) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        read()


@pytest.mark.parametrize(
    "read",
    [
        lambda: over(Kernel, _table=lambda table: TableState()).dump(TABLE),
        lambda: over(Lookout).neighbours(),
        lambda: over(TraceSocket, _control=Replay([NOTHING, FAILED])).rules(TABLE),
    ],
)
def test_or_says_that_it_cannot_read(read: Callable[[], object]) -> None:
    with pytest.raises(KernelUnreachable, match=os.strerror(errno.ENOMEM)):
        read()


@pytest.mark.root
@needs_root
def test_a_set_that_goes_while_it_is_listed() -> None:
    """What the kernel itself says of it."""
    node = Namespace()
    try:
        elements = ", ".join(f"10.{i >> 8}.{i & 255}.1" for i in range(20_000))
        node.nft("add table ip mine; add set ip mine large { type ipv4_addr; }")
        node.nft("-f", "-", stdin=f"add element ip mine large {{ {elements} }}")
        asked = Replies(node.kernel._socket, dump_request(GETSETELEM, Family.IPV4, 1 << 30, "mine", "large"))
        assert next(asked)
        node.nft("delete set ip mine large")
        with pytest.raises(FileNotFoundError):
            list(asked)
    finally:
        node.close()
