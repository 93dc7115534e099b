"""The data plane's figures as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench import affinity


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Of what `dataplane.measure` gives, also before it is complete."""
    yield "connect() (TCP), or connect(), a packet and its answer (UDP), in µs: median (more than direct without nat), more than"
    yield "direct on the same node [95% confidence]; to one Service again and again, and to many in turn"
    if plan := found.get("plan"):
        yield f"({plan['connect']} rounds of {plan['connections']} connections on each way)"
    yield from (f"  {name:<20}{what}" for name, what in found["variants"].items())
    for size, by_origin in found["connect"].items():
        for origin, by_protocol in by_origin.items():
            for protocol, by_variant in by_protocol.items():
                yield ""
                yield f"{size}, from {origin}, {protocol}"
                yield from _table(by_variant)
        for name, why in found["left out"].get(size, {}).items():
            yield f"{name} left out: {why}"
    if "rate" in found:
        yield ""
        yield f"Connections a second at {found['main size']}, all cores busy; ratio to no nat [95% confidence]"
    for name, figures in found.get("rate", {}).items():
        yield f"  {name:<30}{figures['connections/s']:>12,}  {_ratio(figures)}"
    for kind, by_name in found.get("flow", {}).items():
        yield ""
        yield f"Established flow, {kind}, at {found['main size']}; ratio to no nat [95% confidence]"
        for name, figures in by_name.items():
            unit = next(key for key in figures if key != "ratio")
            yield f"  {name:<30}{figures[unit]:>12,} {unit}  {_ratio(figures)}"
    if "affinity" in found:
        yield ""
        yield "Session affinity, connect() in µs: median (more than without)"
        yield from affinity.lines(found["affinity"])
    if "seconds" in found:
        yield ""
        before, after = found["load"]
        yield f"{found['seconds']:.0f} s; load average {before:.1f} before, {after:.1f} after"


def _table(by_variant: Mapping[str, Any]) -> Iterator[str]:
    ways = [way for way in dict.fromkeys(way for by_way in by_variant.values() for way in by_way) if way != "direct"]
    ways.remove("direct in turn")
    yield f"  {'':<20}{'direct':>17}" + "".join(f"{way:>38}" for way in ways)
    for name, by_way in by_variant.items():
        cells = ""
        for way in ways:
            figures = by_way.get(way)
            cells += f"{_way(figures) if figures else '':>38}"
        yield f"  {name:<20}{_direct(by_way['direct']):>17}{cells}".rstrip()


def _direct(figures: Mapping[str, Any]) -> str:
    return f"{figures['time']['median']:.2f} ({figures['above no nat']['median']:+.2f})"


def _way(figures: Mapping[str, Any]) -> str:
    more = figures["difference"]
    return f"{_direct(figures)} {more['median']:+.2f} [{more['low']:+.2f} {more['high']:+.2f}]"


def _ratio(figures: Mapping[str, Any]) -> str:
    ratio = figures["ratio"]
    return f"{ratio['median']:.3f} [{ratio['low']:.3f} {ratio['high']:.3f}]"
