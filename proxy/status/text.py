"""A summary for people, as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from proxy.detect.report import plain
from proxy.status.report import Protection, Rejected, Summary, Watch

NAMED: Final = 10
"""Of what is left out."""
_WIDTH: Final = 11
_VERDICTS: Final = {
    "healthy": "healthy",
    "attention": "healthy, but somebody should look",
    "unhealthy": "not healthy",
}
_COLOURS: Final = {"healthy": "32", "attention": "33", "unhealthy": "31"}


def text(summary: Summary, rejected: Iterable[Rejected] = (), *, colours: bool = False) -> str:
    """rejected: the first of those that are left out."""
    verdict = _VERDICTS[summary.health.verdict]
    if colours:
        verdict = f"\x1b[1;{_COLOURS[summary.health.verdict]}m{verdict}\x1b[0m"
    lines = [f"{plain(summary.node)}: {verdict}"]
    lines += [f"  - {plain(reason)}" for reason in summary.health.reasons]
    for title, words in (
        ("agent", _agent(summary)),
        ("last sync", _sync(summary)),
        ("services", _services(summary)),
        ("tables", _tables(summary)),
        ("others", _others(summary)),
        ("last hour", _hour(summary)),
        ("repairs", _repairs(summary)),
        ("left out", _left_out(summary, list(rejected))),
        ("refused", _refused(summary)),
        ("source", _source(summary)),
        ("findings", _deprecated(summary)),
        ("settings", _settings(summary)),
    ):
        for number, line in enumerate(words):
            lines.append(f"  {'' if number else title:<{_WIDTH}} {plain(line)}")
    return "\n".join(lines) + "\n"


def _agent(summary: Summary) -> Iterator[str]:
    since = datetime.fromtimestamp(summary.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    running = _span(summary.now - summary.started)
    yield f"kube-proxy-nft {summary.version}, Python {summary.python}, running for {running} (since {since})"


def _sync(summary: Summary) -> Iterator[str]:
    health = summary.health
    ago = "never" if health.synced_ago is None else f"{_span(health.synced_ago)} ago"
    waiting = f"{many(health.waiting, 'event')} waiting" if health.waiting else "nothing waits"
    yield "; ".join([ago, waiting, *([many(health.failures, "failed transaction")] if health.failures else [])])


def _services(summary: Summary) -> Iterator[str]:
    counts = summary.counts
    yield f"{counts.services:,}, with {many(counts.endpoints, 'endpoint')} in {many(counts.slices, 'EndpointSlice')}"


def _tables(summary: Summary) -> Iterator[str]:
    for family in summary.families:
        ports, elements = many(family.service_ports, "service port"), many(family.elements, "element")
        yield f"{family.family}: " + (f"{ports}, {elements}" if family.programmed else "not programmed")


_OTHERS: Final[dict[Protection, str]] = {
    "owned": "cannot change our tables",
    "standby": "can change our tables; a standby answers until that is undone",
    "standby-missing": "can change our tables, and the standby that would answer until that is undone is not there yet",
    "watched": "can change our tables, which costs connections until it is undone",
}


def _others(summary: Summary) -> Iterator[str]:
    if words := _OTHERS.get(summary.protection):
        yield words


def _hour(summary: Summary) -> Iterator[str]:
    slots = summary.history.slots
    usual = [slot for slot in slots if slot.commits and not slot.full]  # to program everything takes its time
    commits = sum(slot.commits for slot in usual)
    changes = sum(slot.changes for slot in slots)
    if not commits:
        yield "nothing changed"
        return
    mean = sum(slot.commits * slot.mean_ms for slot in usual) / commits
    slowest = max(slot.slowest_ms for slot in usual)
    yield (
        f"{many(changes, 'change')} of service ports in {many(commits, 'commit')}; "
        f"{mean:.2f} ms on average, the slowest within {slowest:.3g} ms"
    )


def _repairs(summary: Summary) -> Iterator[str]:
    repairs = summary.repairs
    if not repairs.count:
        yield "none: nobody changed our tables"
        return
    recent = ", ".join(datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S") for at in repairs.recent[-5:])
    yield f"{repairs.count:,} since the start" + (f"; within the last hour at {recent} UTC" if recent else "")


def _left_out(summary: Summary, rejected: list[Rejected]) -> Iterator[str]:
    if not summary.rejected:
        yield "nothing"
        return
    yield many(summary.rejected, "object or claim of an address", "objects or claims of addresses")
    for one in rejected[:NAMED]:
        name = f"{one.namespace}/{one.name}" if one.namespace else one.name
        yield f"  {one.kind} {name}: {one.reason}"
    if len(rejected) > NAMED or summary.rejected > len(rejected):
        yield "  and more: -o json, the log, and the status page name them"


def _refused(summary: Summary) -> Iterator[str]:
    if not summary.refused:
        return
    yield f"{many(summary.refused, 'service port')} that the kernel does not take"
    for port in summary.refused_ports[:NAMED]:
        yield f"  {port.service_port} at {port.address}: {port.error}"


def _source(summary: Summary) -> Iterator[str]:
    yield summary.source or "not known"
    width = max((len(watch.kind) for watch in summary.watches), default=0)
    for watch in summary.watches:
        yield f"  {watch.kind:<{width}}  {'; '.join(_watch(watch))}"


def _watch(watch: Watch) -> Iterator[str]:
    yield "nothing heard yet" if watch.heard_ago is None else f"heard {_span(watch.heard_ago)} ago"
    if watch.mode:
        yield f"listed as a {'stream' if watch.mode == 'streaming' else watch.mode}"
    if watch.failures:
        yield many(watch.failures, "failure")
    if watch.relists:
        yield many(watch.relists, "relist")
    if watch.left_out:
        yield f"{many(watch.left_out, 'object')} cannot be read"


def _deprecated(summary: Summary) -> Iterator[str]:
    for one in summary.deprecations:
        more = ", ".join(filter(None, [one.check, one.kep, one.breaks_in and f"breaks in {one.breaks_in}"]))
        yield f"{one.severity}: {one.title} ({more})"
    if not summary.deprecations:
        yield "nothing about kube-proxy's modes on this node is deprecated"


def _settings(summary: Summary) -> Iterator[str]:
    for name in summary.changed:
        yield f"{name}: {summary.settings.get(name, '')}"


def many(count: int, one: str, some: str = "") -> str:
    return f"{count:,} {one if count == 1 else some or one + 's'}"


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{max(0, int(seconds))} s"
    if seconds < 3600:
        return f"{int(seconds / 60)} min"
    if seconds < 48 * 3600:
        return f"{int(seconds / 3600)} h {int(seconds % 3600 / 60)} min"
    return f"{int(seconds / 86400)} days"
