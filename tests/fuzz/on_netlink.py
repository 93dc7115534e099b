"""What the kernel says, damaged. It does not say such things; a kernel of tomorrow, or an error of ours, might."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

from proxy import node_addresses
from proxy.conntrack_socket import Flow, FlowTable, delete_request, read_flow
from proxy.node_addresses import apply
from proxy.state import State
from rules import dump, userdata, wire_expressions
from rules.adopt import adopt
from rules.changes import Changes, merge
from rules.diff import Programmed
from rules.errors import KernelUnreachable, TransactionError
from rules.expressions import Unknown
from rules.kernel import Kernel
from rules.layout import LAYOUTS, Options
from rules.mend import mend
from rules.netlink import attributes as list_attributes
from rules.netlink import error_of, messages
from rules.objects import Family, comment_text
from rules.transaction import AddElement
from rules.wire import encode
from tests.fuzz import attributes, corpus
from tests.fuzz.corpus import SEPARATOR, replies
from tests.fuzz.hunt import Target
from tests.fuzz.scene import NODE, events

TABLE: Final = LAYOUTS[Family.IPV4].table.name
REFUSED: Final = (ValueError, LookupError, struct.error)
"""What readers of single messages raise for damaged ones. Whoever calls them expects these."""

# -- Our table ---------------------------------------------------------------------------------------------------------

_READERS: Final[tuple[Callable[..., Iterator[Any]], ...]] = (
    dump.read_chains,
    dump.read_rules,
    dump.read_sets,
    dump.read_elements,
)


def _check_dump(data: bytes) -> None:
    """Datagrams of a dump."""
    for reader in _READERS:
        with suppress(*REFUSED):
            for name, _ in reader(messages(data), TABLE):
                assert isinstance(name, bytes if reader is dump.read_elements else str)
    with suppress(*REFUSED):
        for message in messages(data):
            for found in dump._of_table([message], TABLE):
                _check_elements(found.get(3, b""))


def _check_elements(listed: bytes) -> None:
    """The quick way to read elements gives what the slow one does."""
    quick = dump._alike(listed)
    if quick is None:
        return
    slow = [dump._element(element) for _, element in list_attributes(listed)]
    assert quick == slow


def _dumps() -> list[bytes]:
    kinds = (3, 6, 9, 12)
    return [data for name in ("nftables", "nftables-6") for kind in kinds for data in replies(name, kind)[:40]]


def _element_lists() -> list[bytes]:
    """The content of NFTA_SET_ELEM_LIST_ELEMENTS."""
    found = []
    for data in replies("nftables", 12):
        for message in messages(data):
            found += [bytes(value) for number, value in list_attributes(message.body[4:]) if number == 3]
    return found


def _check_expression(data: bytes) -> None:
    try:
        found = wire_expressions.decode(data)
    except ValueError:
        return
    if not isinstance(found, Unknown):
        again = [bytes(value) for _, value in list_attributes(wire_expressions.encode(found))]
        assert [wire_expressions.decode(value) for value in again] == [found]


def whole_and_parts(name: str) -> list[bytes]:
    """A recording, and its datagrams."""
    return [corpus.recording(name), *replies(name)]


def _expressions() -> list[bytes]:
    found: dict[bytes, bytes] = {}
    for data in replies("nftables", 6):
        for message in messages(data):
            for number, value in list_attributes(message.body[4:]):
                if number == 4:
                    for _, expression in list_attributes(value):
                        found.setdefault(bytes(expression)[:40], bytes(expression))
    return list(found.values())


class Replay:
    """In a netlink socket's place: answers with these datagrams, one after the other, whatever is asked."""

    def __init__(self, datagrams: Sequence[bytes]) -> None:
        self._waiting = list(datagrams)[::-1]
        self._sequence = 0

    def send(self, data: bytes) -> None:
        (self._sequence,) = struct.unpack_from("=I", data, 8)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self._waiting:
            raise BlockingIOError("there is nothing more")
        data = bytearray(self._waiting.pop())
        at = 0
        while at + 16 <= len(data):  # as far as the lengths are true
            struct.pack_into("=I", data, at + 8, self._sequence)
            at += max(16, (struct.unpack_from("=I", data, at)[0] + 3) & ~3)
        return bytes(data[:size])

    def setsockopt(self, *_: object) -> None:
        pass

    def getsockopt(self, *_: object) -> int:
        return 1 << 30

    def close(self) -> None:
        pass


def _kernel(data: bytes) -> Kernel:
    kernel = Kernel.__new__(Kernel)
    kernel._socket = Replay(data.split(SEPARATOR))  # type: ignore[assignment]
    kernel._sequence, kernel._send_buffer = 0, 1 << 30
    return kernel


@cache
def _wanted() -> State:
    state = State(NODE)
    for event in events():
        state.apply(event)
    return state


def _check_kernel(data: bytes) -> None:
    """A whole table: it is not there, cannot be read, or can be adopted, or not."""
    layout = LAYOUTS[Family.IPV4]
    try:
        table = _kernel(data).dump(layout.table, settled=True)
    except (KernelUnreachable, OSError):
        return
    if table is None:
        return
    state = _wanted()
    wanted = {key: port for key, port in state.everything().items() if port and port.family is Family.IPV4}
    taken = adopt(Family.IPV4, table, Options(), state.service_cidrs, wanted, frozenset([bytes([10, 1, 0, 1])]))
    if taken and taken.operations:
        encode(taken.operations)


def _check_changes(data: bytes) -> None:
    """What others do: each transaction is told or not, and can be mended or needs a look at the whole table."""
    changes = Changes(own=7)
    with suppress(ValueError):
        for datagram in data.split(SEPARATOR):
            for touched in merge(changes.feed(datagram)):
                operations = mend(_programmed(touched.family), touched, Options(), _wanted().service_cidrs)
                if operations:
                    encode(operations)


@cache
def _programmed(family: Family) -> Programmed:
    state = _wanted()
    programmed = Programmed(family)
    wanted = {key: port for key, port in state.everything().items() if port and port.family is family}
    programmed.accept(programmed.plan(wanted, frozenset()))
    return programmed


def _check_refusal(data: bytes) -> None:
    """What it says of a transaction."""
    layout = LAYOUTS[Family.IPV4]
    operations = [AddElement(layout.cluster_ips, bytes([10, 0, 0, n])) for n in range(5)]
    kernel = _kernel(data)
    with suppress(TransactionError, KernelUnreachable, OSError):
        kernel.commit(operations)
    with suppress(TransactionError, KernelUnreachable, OSError):
        kernel.has(layout.table)


def _check_error(data: bytes) -> None:
    batch = encode([AddElement(LAYOUTS[Family.IPV4].cluster_ips, bytes(4))])
    with suppress(*REFUSED):
        for message in messages(data):
            code, offset = error_of(message)
            with suppress(*REFUSED):
                batch.at(message.sequence, offset)
            assert isinstance(code, int) and offset >= 0


# -- Flows and addresses -----------------------------------------------------------------------------------------------


def _check_conntrack(data: bytes) -> None:
    with suppress(*REFUSED):
        for message in messages(data):
            flow = read_flow(message)
            if flow:
                _is_flow(flow)
    table = FlowTable.__new__(FlowTable)
    table._socket, table._sequence = Replay(data.split(SEPARATOR)), 0  # type: ignore[assignment]
    with suppress(OSError, *REFUSED):
        for family in Family:
            for flow in table.flows(family):
                _is_flow(flow)
    with suppress(OSError, *REFUSED):
        table.forget([Flow(Family.IPV4, bytes(8), bytes(8), b"", b"")] * 3)


def _is_flow(flow: Flow) -> None:
    assert flow.to and flow.leads_to
    delete_request(1, flow, 0)


def _check_addresses(data: bytes) -> None:
    entries: dict[bytes, bytes] = {}
    with suppress(*REFUSED):
        for message in messages(data):
            apply(message, entries)
    assert all(len(address) in (4, 16) for address in entries.values())
    with suppress(OSError, *REFUSED):
        node_addresses._read_once(Replay(data.split(SEPARATOR)), 1, entries)  # type: ignore[arg-type]


# -- User data --------------------------------------------------------------------------------------------------------


def _userdata() -> list[bytes]:
    return [userdata.comment(userdata.COMMENT, "a comment"), b"\7\2a\0\0\1b"]


def _check_userdata(data: bytes) -> None:
    for kind in range(8):
        assert isinstance(userdata.text_of(data, kind), str)
    text = data.decode(errors="replace")
    assert userdata.text_of(userdata.comment(userdata.COMMENT, text), userdata.COMMENT) == comment_text(text).rstrip(
        "\0"
    )


NFT: Final = attributes.mutation(4)
ROUTE: Final = attributes.mutation(8)
_INNER: Final = attributes.mutation(0, has_headers=False)
_TOKENS: Final = (
    b"kube-proxy-nft\0",
    SEPARATOR,
    b"\x14\0\0\0\3\0\2\0\0\0\0\0\0\0\0\0\0\0\0\0",
    b"\x24\0\0\0\2\0\0\1",
    b"payload\0",
    b"cmp\0",
)

TARGETS: Final = (
    Target("dump", _dumps, _check_dump, _TOKENS, (NFT, NFT), 800),
    Target("elements", _element_lists, _check_elements, (), (_INNER,), 2000),
    Target("expressions", _expressions, _check_expression, _TOKENS, (_INNER, _INNER), 3000),
    Target("kernel", lambda: [corpus.recording("nftables")], _check_kernel, _TOKENS, (NFT, NFT), 40),
    Target("changes", lambda: whole_and_parts("notifications"), _check_changes, _TOKENS, (NFT, NFT, NFT), 1000),
    Target("refusals", lambda: [corpus.recording("refusals")], _check_refusal, _TOKENS, (NFT,), 600),
    Target("errors", lambda: replies("refusals"), _check_error, _TOKENS, (NFT,), 1500),
    Target("conntrack", lambda: whole_and_parts("conntrack"), _check_conntrack, _TOKENS, (NFT, NFT, NFT), 1000),
    Target("addresses", lambda: whole_and_parts("addresses"), _check_addresses, _TOKENS, (ROUTE, ROUTE, ROUTE), 1500),
    Target("userdata", _userdata, _check_userdata, (b'"', b"\xc3\xbc"), (), 500),
)
