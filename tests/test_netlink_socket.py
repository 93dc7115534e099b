"""The replies to one request, as they come from a socket, and those who must not take a disturbed listing for true."""

from __future__ import annotations

import errno
import struct

import pytest

from rules.errors import KernelUnreachable
from rules.foreign import Changed, Reader
from rules.kernel import Kernel
from rules.layout import LAYOUTS
from rules.netlink import GETSET, NLM_F_DUMP, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, message
from rules.netlink_socket import Replies
from rules.objects import Family
from tests.fuzz.on_netlink import Replay

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
