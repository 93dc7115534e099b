"""`kube-proxy-nft trace TO`: asks the kernel, waits for connections, prints what became of them."""

from __future__ import annotations

import argparse
import contextlib
import errno
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
import structlog

from proxy import signals
from proxy.addresses import parse_address
from proxy.detect.output import put
from proxy.errors import NoPermission, UsageError
from proxy.trace.journey import Describe, Journey, journey, text
from proxy.trace.words import describe
from rules import standby
from rules.errors import KernelUnreachable
from rules.expressions import Expression
from rules.layout import LAYOUTS
from rules.objects import PROTOCOLS, Family
from rules.trace import PREFIX, Event, Header, Wanted
from rules.trace_socket import TraceSocket

LOG = structlog.get_logger()
_TARGET = re.compile(r"\[?(?P<address>[^\]/]+?)\]?:(?P<port>\d{1,5})(?:/(?P<protocol>tcp|udp|sctp))?", re.IGNORECASE)


def run(options: argparse.Namespace) -> None:
    """Do what the options of `arguments` say. Raises UserError."""
    wanted = read_target(options.target, options.source)
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True

    try:
        with TraceSocket() as trace, signals.ending(end):
            tables = (LAYOUTS[wanted.family].table, standby.table(wanted.family))
            rules = {table.name: trace.rules(table) for table in tables}
            trace.start(wanted)
            print(f"waiting for connections to {options.target}, {options.seconds:g} s", file=sys.stderr)
            found = journeys(trace.events(options.seconds), _describer(rules), lambda: is_over)
            left = options.connections
            for one in found:
                put(msgspec.json.encode(one).decode() + "\n" if options.output == "json" else text(one))
                left -= 1
                if not left:
                    return
    except KernelUnreachable as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise NoPermission("nftables", str(error), "run as root, or with the capability CAP_NET_ADMIN") from None
        raise
    if left == options.connections and not is_over:
        LOG.warning(
            "nothing_traced",
            to=options.target,
            seconds=options.seconds,
            cause="no new connection came by here",
            remedy="connect while it runs; --seconds gives it more time",
        )


def read_target(target: str, source: str | None) -> Wanted:
    """Raises UsageError."""
    match = _TARGET.fullmatch(target)
    if not match or not 0 < int(match["port"]) < 65536:
        raise UsageError(target, "it is no address with a port", "write ADDRESS:PORT or ADDRESS:PORT/udp")
    try:
        destination = parse_address(match["address"])
        origin = parse_address(source) if source else b""
    except ValueError as error:
        raise UsageError(target, str(error), "write addresses, not names") from None
    if origin and len(origin) != len(destination):
        raise UsageError(f"--from {source}", f"it is of another IP family than {target}", "name one of the same")
    protocol = PROTOCOLS[(match["protocol"] or "tcp").upper()]
    return Wanted(Family.of(destination), destination, protocol, int(match["port"]), origin)


def journeys(
    events: Iterator[Event | None], describe: Describe, is_over: Callable[[], bool] = lambda: False
) -> Iterator[Journey]:
    """One for each packet, when nothing more comes of it."""
    open_: dict[int, list[Event]] = {}
    for event in events:
        if event and event.header and event.number not in open_ and (begun := _begun(open_.values(), event.header)):
            open_[event.number] = begun
        if event is None:  # the kernel has no more: these packets have come to their end
            yield from _done(open_, describe)
            if is_over():
                return
        elif not event.table.startswith(PREFIX):
            open_.setdefault(event.number, []).append(event)
        elif event.number in open_ and event.header:  # our own chain at its arrival, which tells its address there
            open_[event.number].append(event)
    yield from _done(open_, describe)


def _begun(packets: Iterable[list[Event]], header: Header) -> list[Event] | None:
    """What has happened to this packet under another number. A bridge that asks IP's hooks (br_netfilter) hands it on as
    its own interface's, and the number is made of the interface's, too. It has another destination by then; a packet
    that is sent again has the first one."""
    for events in packets:
        first = next((event.header for event in events if event.header), None)
        if first and _sender(first) == _sender(header) and _receiver(first) != _receiver(header):
            return events
    return None


def _sender(header: Header) -> tuple[int, bytes, int]:
    return header.protocol, header.source, header.source_port


def _receiver(header: Header) -> tuple[bytes, int]:
    return header.destination, header.port


def _done(packets: dict[int, list[Event]], describe: Describe) -> Iterator[Journey]:
    complete = {id(events): events for events in packets.values()}
    packets.clear()
    for events in complete.values():
        yield journey(events, describe, _interface)


def _describer(rules: Mapping[str, Mapping[tuple[str, int], tuple[Expression, ...]]]) -> Describe:
    """rules: of our tables, by name; by chain and handle."""

    def words(event: Event) -> str:
        rule = rules.get(event.table, {}).get((event.chain, event.handle))
        return describe(rule) if rule else ""

    return words


def _interface(index: int) -> str:
    with contextlib.suppress(OSError):
        return socket.if_indextoname(index)
    return str(index)
