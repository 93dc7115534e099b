"""The report as one page that needs nothing else: style, script and data are in it, and it may load nothing. Pure.

All that comes from outside is escaped before it is put together (`_escaped`), or stands in the data, as JSON.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

import msgspec
from msgspec import structs

from proxy.migrate import output_words as words
from proxy.migrate.report import EntryRow, Finding, Report, ServiceRow, Step
from proxy.migrate.wording import many
from proxy.web_page import parts

MOST_STATIC_ROWS: Final = 100
"""Services that differ, for a reader without JavaScript."""
NAMED_OBJECTS: Final = 3
"""Of a finding, before the reader opens the rest."""

MOST_ENDPOINTS: Final = 20
MOST_ENDPOINTS_OF_DIFFERENT: Final = 1000
"""Of one address that comes out the same, and of one that does not."""
MOST_ENDPOINTS_IN_ALL: Final = 250_000
"""They make most of the page: about 20 bytes each. Services that come later have their number only."""
LONGEST_DIFFERENCE: Final = 4000

_STALE: Final = "stale-rules"
"""The check that tells of differences which no other one explains."""

_RESULTS: Final = tuple(words.RESULTS)
_PLACES: Final = {result: place for place, result in enumerate(_RESULTS)}


def render(report: Report) -> str:
    it = parts(__package__)
    services = words.by_harm(report.services)
    head = words.mapped(structs.replace(report, services=()), _escaped)
    different = words.differing(services) if report.compared else []
    more = len(different) - MOST_STATIC_ROWS
    return it.page.substitute(
        policy=it.policy,
        style=it.style,
        script=it.script,
        data=_data(report, services),
        state="" if report.compared else "uncompared",
        node=head.node,
        verdict=head.verdict,
        verdict_words=words.VERDICTS[head.verdict],
        reasons=_items(head.reasons),
        links=_links(head, len(services)),
        bar=_bar(head) if report.compared else "",
        facts="".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in _facts(head)),
        severities=_severities(head),
        findings="".join(map(_finding, range(len(head.findings)), words.by_severity(head.findings))) or "<p>None.</p>",
        services_note="" if report.compared else f"<p>{words.not_compared()}</p>",
        rows="".join(_row(words.mapped(row, _escaped)) for row in different[:MOST_STATIC_ROWS]),
        more=f"And {many(more, 'more Service')} with differences: to see them, allow JavaScript." if more > 0 else "",
        platforms=_platforms(head),
        plan="".join(_plan(head)),
        proof="".join(f"<p>{text}</p>" for text in words.proof(head)),
        gaps=_items(f"{gap.what}: {gap.cause}" + (f" ({gap.remedy})" if gap.remedy else "") for gap in head.gaps)
        or "<p>Everything could be read.</p>",
        made=head.made,
        made_by=head.made_by,
    )


@cache
def _escaped(text: str) -> str:
    return html.escape(words.readable(text))


def _items(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{text}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _links(report: Report, services: int) -> str:
    parts = (
        ("findings", "Findings", len(report.findings)),
        ("services", "Services", services),
        ("plan", "Plan", None),
        ("proof", "Proof", None),
        ("gaps", "Not covered", len(report.gaps)),
    )
    return "".join(
        f'<div><a href="#{name}">{title}</a>' + (f"<span>{count:,}</span>" if count is not None else "") + "</div>"
        for name, title, count in parts
    )


def _bar(report: Report) -> str:
    """How many Services come out how, as a bar with a legend."""
    counts = {result: count for result in _RESULTS if (count := report.counts.results.get(result, 0))}
    widths = {result: max(8.0, 1000 * count / sum(counts.values())) for result, count in counts.items()}
    scale = 1000 / sum(widths.values()) if widths else 1
    left, parts = 0.0, []
    for result, width in widths.items():
        parts.append(f'<rect class="{result}" x="{left:.1f}" width="{width * scale:.1f}" height="10"/>')
        left += width * scale
    legend = "".join(
        f'<li class="{result}"><span><b>{counts[result]:,}</b> {words.RESULTS[result]}</span></li>' for result in counts
    )
    bar = f'<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'
    return f'{bar}<ul class="legend">{legend}</ul>' if counts else ""


def _facts(report: Report) -> Iterable[tuple[str, str]]:
    yield "Now", words.present_proxy(report)
    yield "Cluster", f"Kubernetes {report.cluster_version}" if report.cluster_version else "version not known"
    yield "Objects", words.sizes(report) + (f", from {report.source}" if report.source else "")
    yield "Proof", words.PROOFS[report.proof.status]


def _severities(report: Report) -> str:
    if not report.findings:
        return ""
    boxes = "".join(
        f'<label><input type="checkbox" name="severity" value="{severity}" checked>{severity} ({count:,})</label>'
        for severity in words.SEVERITIES
        if (count := sum(finding.severity == severity for finding in report.findings))
    )
    return f'<fieldset id="severities" class="scripted"><legend>Severity</legend>{boxes}</fieldset>'


def _finding(number: int, finding: Finding) -> str:
    kep = f"<span>{finding.kep}</span>" if finding.kep else ""
    remedy = f"<p><b>Do:</b> {finding.remedy}</p>" if finding.remedy else ""
    return (
        f'<article class="finding" id="finding-{number}" data-severity="{finding.severity}" data-check="{finding.check}">'
        f'<span class="tag {finding.severity}">{finding.severity}</span><h3>{finding.title}</h3>'
        f"<p>{finding.why}</p>{remedy}{_objects(finding)}"
        f'<p class="foot"><code>{finding.check}</code>{kep}'
        '<button type="button" class="scripted">Show the Services</button></p></article>'
    )


def _objects(finding: Finding) -> str:
    count = max(finding.count, len(finding.objects))
    named = ", ".join(f"<bdi>{name}</bdi>" for name in finding.objects[:NAMED_OBJECTS])
    if count <= NAMED_OBJECTS:
        return f"<p><b>On:</b> {named}</p>" if named else ""
    rest = count - len(finding.objects)
    listed = "\n".join(finding.objects) + (f"\nand {rest:,} more" if rest else "")
    return f"<details><summary>{named} and {count - NAMED_OBJECTS:,} more</summary><p>{listed}</p></details>"


def _row(row: ServiceRow) -> str:
    what = dict.fromkeys(words.LABELS.get(item.what, item.what) for entry in row.entries for item in entry.differences)
    return (
        f'<tr><td><bdi>{row.service}</bdi></td><td>{row.type}</td><td class="{row.result}">{words.RESULTS[row.result]}</td>'
        f'<td>{", ".join(what)}</td><td class="number">{len(row.entries)}</td></tr>'
    )


def _platforms(report: Report) -> str:
    chosen = report.plan.platform if report.plan.platform in words.PLATFORMS else "kubeadm"
    note = f"<p>This node is run by {words.PLATFORMS[chosen]}.</p>" if chosen == report.plan.platform else ""
    boxes = "".join(
        f'<label><input type="radio" name="platform" value="{platform}"{" checked" * (platform == chosen)}>{name}</label>'
        for platform, name in words.PLATFORMS.items()
    )
    return f'{note}<fieldset id="platforms" class="scripted"><legend>Commands for</legend>{boxes}</fieldset>'


def _plan(report: Report) -> Iterable[str]:
    for part, title in words.PARTS.items():
        steps: tuple[Step, ...] = getattr(report.plan, part)
        if steps:
            yield f'<h3 class="part">{title}</h3><ol>{"".join(map(_step, steps))}</ol>'


def _step(step: Step) -> str:
    why = f"<p>{step.why}</p>" if step.why else ""
    blocks = "".join(_commands(platform, commands) for platform, commands in step.commands.items() if commands)
    return f"<li><h4>{step.title}</h4>{why}{blocks}</li>"


def _commands(platform: str, commands: tuple[str, ...]) -> str:
    for_all = platform == "any"
    attribute = "" if for_all else f' data-platform="{platform}"'
    label = "" if for_all else f"<p>{words.PLATFORMS.get(platform, platform)}:</p>"
    if notes := words.notes(commands):
        return f"<div{attribute}>{label}{_items(notes)}</div>"
    text = "\n".join(commands)
    button = '<button type="button" class="copy scripted">Copy</button>'
    return f'<div class="commands"{attribute}>{label}<pre tabindex="0"><code>{text}</code></pre>{button}</div>'


def _data(report: Report, services: Sequence[ServiceRow]) -> str:
    """What page.js reads; nothing in it can end the script element that it stands in."""
    packing = _Packing()
    rows = [packing.service(row) for row in services]
    data = {
        "results": _RESULTS,
        "resultWords": tuple(words.RESULTS.values()),
        "stale": _STALE,
        "labels": words.LABELS,
        "about": _about(words.by_severity(report.findings), services),
        "types": list(packing.types),
        "services": rows,
    }
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _about(findings: Iterable[Finding], services: Sequence[ServiceRow]) -> list[list[int]]:
    """For each finding the places of the Services that it names or that differ because of it."""
    places = {row.service: place for place, row in enumerate(services)}
    explained: dict[str, set[int]] = {}
    for place, row in enumerate(services):
        for entry in row.entries:
            for item in entry.differences:
                explained.setdefault(item.check or _STALE, set()).add(place)
    found = []
    for finding in findings:
        named = (text.removeprefix("Service ").partition(":")[0] for text in finding.objects)
        found.append(sorted(explained.get(finding.check, set()) | {places[name] for name in named if name in places}))
    return found


class _Packing:
    """Services as short rows; page.js says how they look. Endpoints that several addresses share are there once."""

    def __init__(self) -> None:
        self.types: dict[str, int] = {}
        self._left = MOST_ENDPOINTS_IN_ALL

    def service(self, row: ServiceRow) -> list[object]:
        sets: dict[tuple[str, ...], int] = {}
        kind = self.types.setdefault(words.readable(row.type), len(self.types))
        entries = [self._entry(entry, sets) for entry in row.entries]
        most = MOST_ENDPOINTS if row.result == "same" else MOST_ENDPOINTS_OF_DIFFERENT
        return [words.readable(row.service), kind, _PLACES[row.result], entries, [self._shown(s, most) for s in sets]]

    def _entry(self, entry: EntryRow, sets: dict[tuple[str, ...], int]) -> list[object]:
        reached = sets.setdefault(entry.endpoints, len(sets)) if entry.endpoints else -1
        differences = [
            [words.readable(text)[:LONGEST_DIFFERENCE] for text in (item.what, item.there, item.here, item.check)]
            for item in entry.differences
        ]
        address, port = words.readable(entry.address), words.readable(words.port_name(entry))
        return [address, port, _PLACES[entry.result], reached, differences]

    def _shown(self, endpoints: tuple[str, ...], most: int) -> list[object]:
        shown = endpoints[: min(most, self._left)]
        self._left -= len(shown)
        return [[words.readable(endpoint) for endpoint in shown], len(endpoints)]
