"""The report as Markdown (GitHub's and GitLab's), for a pull request or a wiki. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import structs

from proxy.migrate import output_words as words
from proxy.migrate.report import EntryRow, Finding, Report, ServiceRow, Step
from proxy.migrate.wording import many

MOST_ROWS: Final = 200
"""Of the table of addresses that differ: forges cut, or refuse, long texts."""
MOST_OBJECTS: Final = 20
MOST_ENTRIES: Final = 20

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~$&!^=+@:-])")
_RUN: Final = re.compile(r"`+")
_WORDLIKE: Final = frozenset("-:_=+")
_ENTITIES: Final = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;"}
"""@name would call somebody on a forge, even behind a backslash."""


def render(report: Report) -> str:
    different = words.differing(report.services) if report.compared else []
    head = words.mapped(structs.replace(report, services=()), words.readable)
    shown, count = _rows(different)
    parts = [
        f"# Migration to kube-proxy-nft: node {code(head.node)}",
        f"**{words.VERDICTS[head.verdict]}**",
        _bullets(prose(reason) for reason in head.reasons),
        _facts(head),
        "## Findings",
        *(_finding(finding) for finding in words.by_severity(head.findings)),
        *([] if head.findings else ["None."]),
        "## Services",
        *_services(head, shown, count, len(different)),
        "## Proof",
        *map(prose, words.proof(head)),
        *(["## Not covered"] if head.gaps else []),
        _bullets(
            f"{prose(gap.what)}: {prose(gap.cause)}" + (f" ({prose(gap.remedy)})" if gap.remedy else "")
            for gap in head.gaps
        ),
        "## Plan",
        *_plan(head),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def prose(text: str) -> str:
    """On one line, with nothing in it that Markdown or HTML would take for markup."""
    return _SPECIAL.sub(_escaped, " ".join(text.split()))


def _escaped(found: re.Match[str]) -> str:
    character, text = found[1], found.string
    start, end = found.span()
    inside = start > 0 and end < len(text) and (text[start - 1] + text[end]).isalnum()
    if character in _WORDLIKE and (inside or character == ":"):
        return character
    return _ENTITIES.get(character, f"\\{character}")


def code(text: str, *, in_table: bool = False) -> str:
    """A code span, whatever is in it. In a table a bar needs its backslash even there."""
    text = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in _RUN.findall(text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") or not text else ""
    if in_table:
        text = text.replace("|", "\\|")
    return f"{fence}{space}{text}{space}{fence}"


def block(lines: Sequence[str]) -> str:
    """Lines as they are, to be copied."""
    text = "\n".join(lines)
    fence = "`" * max(3, 1 + max((len(run) for run in _RUN.findall(text)), default=0))
    return f"{fence}sh\n{text}\n{fence}"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _facts(report: Report) -> str:
    rows = (
        ("now", prose(words.present_proxy(report))),
        ("cluster", prose(f"Kubernetes {report.cluster_version}" if report.cluster_version else "version not known")),
        ("objects", prose(words.sizes(report) + (f", from {report.source}" if report.source else ""))),
        ("proof", words.PROOFS[report.proof.status]),
        ("made", prose(f"{report.made} by {report.made_by}")),
    )
    return _table(("", ""), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])


def _finding(finding: Finding) -> str:
    kep = f", {prose(finding.kep)}" if finding.kep else ""
    parts = [
        f"### {finding.severity.capitalize()}: {prose(finding.title)}",
        prose(finding.why),
        f"**Do:** {prose(finding.remedy)}" if finding.remedy else "",
    ]
    if finding.objects:
        more = max(finding.count, len(finding.objects)) - MOST_OBJECTS
        shown = ", ".join(code(name) for name in finding.objects[:MOST_OBJECTS])
        parts.append(f"**On:** {shown}" + (f" and {more:,} more" if more > 0 else ""))
    parts.append(f"({code(finding.check)}{kep})")
    return "\n\n".join(filter(None, parts))


def _rows(different: Sequence[ServiceRow]) -> tuple[list[tuple[str, ...]], int]:
    """Of the table of addresses that differ, and how many Services they are of."""
    rows: list[tuple[str, ...]] = []
    for count, service in enumerate(different):
        if len(rows) >= MOST_ROWS:
            return rows, count
        service = words.mapped(service, words.readable)
        entries = [entry for entry in service.entries if entry.result != "same"]
        rows += [_row(service, entry) for entry in entries[:MOST_ENTRIES]]
        if len(entries) > MOST_ENTRIES:
            more = many(len(entries) - MOST_ENTRIES, "more address")
            rows.append((code(service.service, in_table=True), "", more, ""))
    return rows, len(different)


def _row(service: ServiceRow, entry: EntryRow) -> tuple[str, ...]:
    port = f" ({prose(words.port_name(entry))})" if entry.port else ""
    what = [text for text in words.what_differs(entry) if text != words.RESULTS[entry.result]]
    return (
        code(service.service, in_table=True),
        code(entry.address, in_table=True) + port,
        words.RESULTS[entry.result],
        "<br>".join(map(prose, what)),
    )


def _services(report: Report, rows: Sequence[tuple[str, ...]], count: int, different: int) -> Iterable[str]:
    if not report.compared:
        yield words.not_compared()
        return
    yield words.results(report).capitalize() + "."
    if rows:
        yield _table(("Service", "address", "result", "what differs"), rows)
    if different > count:
        more = many(different - count, "more Service")
        yield f"And {more} that {'differs' if different - count == 1 else 'differ'}: `-o html` and `-o json` have all."


def _plan(report: Report) -> Iterable[str]:
    known = words.PLATFORMS.get(report.plan.platform)
    if known:
        yield f"This node is run by {known}."
    for part, title in words.PARTS.items():
        steps: tuple[Step, ...] = getattr(report.plan, part)
        if steps:
            yield f"### {title}"
        for number, step in enumerate(steps, 1):
            yield f"{number}. **{prose(step.title)}**"
            if step.why:
                yield f"   {prose(step.why)}"
            for platform, commands in step.commands.items():
                if platform != "any":
                    yield f"   {words.PLATFORMS.get(platform, prose(platform))}:"
                text = _bullets(map(prose, words.notes(commands)))
                text = text or block([line for command in commands for line in command.split("\n")])
                yield "\n".join(f"   {line}" for line in text.split("\n"))
