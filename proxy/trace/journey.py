"""What happened to one packet, from the kernel's trace of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from proxy.addresses import with_port
from rules.objects import PROTOCOL_NAMES
from rules.trace import PREFIX, Event

Describe = Callable[[Event], str]
"""A rule in words; "" where it is not known."""


class Step(Struct, frozen=True, rename="camel"):
    """table: "ip kube-proxy-nft". rule: in words, "" for the policy of a base chain."""

    table: str
    chain: str
    rule: str
    verdict: str


class Journey(Struct, frozen=True, rename="camel"):
    """source, target: as the packet came. led_to: where it went behind the last change of its destination; "" where it
    went nowhere. dropped_by: "ip filter FORWARD" where that is so. came_in, goes_out: interfaces."""

    source: str
    target: str
    led_to: str
    dropped_by: str
    came_in: str
    goes_out: str
    steps: tuple[Step, ...]


_FAMILIES = {1: "inet", 2: "ip", 10: "ip6"}


def journey(events: Sequence[Event], describe: Describe, interface: Callable[[int], str]) -> Journey:
    """events: of one packet, in their order. interface: the name of an index."""
    headers = [event.header for event in events if event.header]
    first, last = (headers[0], headers[-1]) if headers else (None, None)
    dropped = next((event for event in events if event.verdict == "drop"), None)
    target = with_port(first.destination, first.port) if first else "?"
    return Journey(
        with_port(first.source, first.source_port) if first else "?",
        f"{target}/{PROTOCOL_NAMES.get(first.protocol, first.protocol)}" if first else "?",
        with_port(last.destination, last.port) if last and not dropped else "",
        f"{_table(dropped)} {dropped.chain}" if dropped else "",
        interface(first.came_in) if first and first.came_in else "",
        next((interface(h.goes_out) for h in reversed(headers) if h.goes_out), ""),
        tuple(_steps(events, describe)),
    )


def _steps(events: Sequence[Event], describe: Describe) -> Iterator[Step]:
    for event in events:
        if event.table.startswith(PREFIX):
            continue
        where = f"{event.verdict} {event.target}".rstrip()
        if event.kind == "rule" and event.handle:  # without one it is the end of a chain
            yield Step(_table(event), event.chain, describe(event) or f"rule {event.handle}", where)
        elif event.kind == "policy":
            yield Step(_table(event), event.chain, "", f"policy {where}")


def _table(event: Event) -> str:
    return f"{_FAMILIES.get(event.family, event.family)} {event.table}"


def text(journey: Journey) -> str:
    """For people."""
    way = f", in through {journey.came_in}" if journey.came_in else ""
    lines = [f"{journey.source} -> {journey.target}{way}"]
    table = ""
    for step in journey.steps:
        if step.table != table:
            table = step.table
            lines.append(f"  table {table}")
        lines.append(f"    {step.chain:<24} {step.rule or step.verdict}{_ending(step)}")
    if journey.dropped_by:
        lines.append(f"  refused or dropped by {journey.dropped_by}")
    else:
        out = f", out through {journey.goes_out}" if journey.goes_out else ""
        lines.append(f"  led to {journey.led_to}{out}")
    return "\n".join(lines) + "\n"


def _ending(step: Step) -> str:
    """The verdict, where the rule's words do not tell."""
    if not step.rule or step.verdict.split()[0] in ("continue", *step.rule.split()):
        return ""
    return f"  ({step.verdict})"
