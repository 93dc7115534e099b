"""The report for a person at a terminal, with rich. Pure but for `for_standard_output`, which asks what that is like."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Final

from msgspec import structs
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from proxy.detect import output
from proxy.migrate import output_words as words
from proxy.migrate.report import EntryRow, Finding, Plan, Report, ServiceRow, Severity, Step, Verdict

WIDTH: Final = 100
"""Where nobody's terminal says how wide it is; and lines get no longer on wider ones, but for commands and addresses."""
MOST_SERVICES: Final = 50
MOST_OBJECTS: Final = 5
MOST_ENTRIES: Final = 6
MOST_GAPS: Final = 20

_SEVERITIES: Final[dict[Severity, str]] = {
    "blocker": "bold red",
    "change": "bold yellow",
    "notice": "bold cyan",
    "info": "bold",
}
_VERDICTS: Final[dict[Verdict, str]] = {
    "ready": "bold green",
    "ready-with-changes": "bold yellow",
    "unknown": "bold yellow",
    "blocked": "bold red",
}


def for_standard_output(report: Report) -> str:
    """As wide and as colourful as a person's terminal takes it; in ASCII where the locale has nothing else."""
    terminal = output.is_terminal()
    width = WIDTH
    if terminal:
        try:
            width = os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH
        except OSError:
            pass
    encoding = (sys.stdout.encoding or "utf-8") if sys.stdout is not None else "utf-8"
    try:
        "é→".encode(encoding)
        ascii_only = False
    except (UnicodeEncodeError, LookupError):
        ascii_only = True
    colours = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return render(report, width=width, colours=colours, ascii_only=ascii_only)


def render(report: Report, *, width: int = WIDTH, colours: bool = False, ascii_only: bool = False) -> str:
    """ascii_only: what is no ASCII is written as an escape."""
    shown = words.differing(report.services)[:MOST_SERVICES] if report.compared else []
    different = sum(row.result != "same" for row in report.services)
    report = structs.replace(report, services=tuple(shown))
    page = _Page(max(width, 20), colours)
    _write(page, words.mapped(report, words.readable), different)
    text = page.text()
    return text.encode("ascii", "backslashreplace").decode() if ascii_only else text


class _Page:
    """Lines with an indent and a style; what is too long goes on below its beginning."""

    def __init__(self, width: int, colours: bool) -> None:
        self._stream = StringIO()
        self._console = Console(
            file=self._stream,
            width=width,
            force_terminal=colours,
            color_system="standard" if colours else None,
            no_color=not colours,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            _environ={},
        )
        self._prose = min(width, WIDTH)

    def line(self, text: str | Text = "", indent: int = 0, style: str = "") -> None:
        shown = Text(text, style=style) if isinstance(text, str) else text
        self._console.print(Padding(shown, (0, 0, 0, indent), expand=False), width=self._prose)

    def labelled(self, label: str, text: str, indent: int, label_style: str = "", style: str = "") -> None:
        """The label, and the text beside it."""
        hanging = indent + len(label)
        if hanging * 2 > self._prose:
            self.line(label.rstrip(), indent, label_style)
            self.line(text, indent + 2, style)
            return
        lines = Text(text, style).wrap(self._console, self._prose - hanging) or [Text()]
        for number, wrapped in enumerate(lines):
            wrapped.rstrip()
            first = Text(label, label_style) if not number else Text(" " * len(label))
            self.line(Text.assemble(first, wrapped), indent)

    def verbatim(self, text: str, indent: int) -> None:
        """Never broken, so that it can be copied."""
        for line in text.split("\n"):
            self._console.print(" " * indent + line, soft_wrap=True)

    def gap(self) -> None:
        self._console.print()

    def title(self, text: str) -> None:
        self.gap()
        self.line(text, style="bold")

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._stream.getvalue().split("\n"))


def _write(page: _Page, report: Report, different: int) -> None:
    page.line(f"Migration to kube-proxy-nft: node {report.node}", style="bold")
    cluster = f"Kubernetes {report.cluster_version}; " if report.cluster_version else ""
    page.line(cluster + words.sizes(report) + (f", from {report.source}" if report.source else ""))
    page.line(f"now: {words.present_proxy(report)}")
    page.line(f"made {report.made} by {report.made_by}", style="dim")
    page.gap()
    page.line(words.VERDICTS[report.verdict].upper(), style=_VERDICTS[report.verdict])
    for reason in report.reasons:
        page.labelled("- ", reason, 2)
    _findings(page, words.by_severity(report.findings))
    _services(page, report, different)
    sentence, *details = words.proof(report)
    page.title(f"Proof: {words.PROOFS[report.proof.status]}")
    for text in (sentence, *details):
        page.line(text, 2)
    if report.gaps:
        page.title("Not covered")
        for gap in report.gaps[:MOST_GAPS]:
            page.labelled("- ", f"{gap.what}: {gap.cause}" + (f" ({gap.remedy})" if gap.remedy else ""), 2)
        if len(report.gaps) > MOST_GAPS:
            page.line(f"and {len(report.gaps) - MOST_GAPS:,} more: all are in -o html and -o json", 2)
    _plan(page, report.plan)


def _findings(page: _Page, findings: Sequence[Finding]) -> None:
    page.title("Findings" if findings else "Findings: none")
    for number, finding in enumerate(findings):
        if number:
            page.gap()
        severity = f"{finding.severity.upper():<9}"
        page.labelled(severity, finding.title, 2, _SEVERITIES[finding.severity], "bold")
        indent = 11
        if finding.why:
            page.labelled("why: ", finding.why, indent)
        if finding.remedy:
            page.labelled("do:  ", finding.remedy, indent)
        if finding.objects:
            page.labelled("on:  ", _some(finding.objects, finding.count), indent)
        kep = f", {finding.kep}" if finding.kep else ""
        page.line(Text(f"[{finding.check}{kep}]", style="dim"), indent)


def _some(objects: Sequence[str], count: int) -> str:
    more = max(count, len(objects)) - MOST_OBJECTS
    # One more is named, not counted.
    shown = objects[: MOST_OBJECTS + (more == 1)]
    return ", ".join(shown) + (f" and {more:,} more" if more > 1 else "")


def _services(page: _Page, report: Report, different: int) -> None:
    if not report.compared:
        page.title("Services: not compared")
        page.line(words.not_compared(), 2)
        return
    page.title(f"Services: {words.results(report)}")
    for row in report.services:
        _service(page, row)
    more = different - len(report.services)
    if more > 0:
        page.line(f"and {more:,} more that differ: all are in -o html and -o json", 2)


def _service(page: _Page, row: ServiceRow) -> None:
    kind = f" ({row.type})" if row.type else ""
    page.line(Text.assemble((row.service, "bold"), f"{kind}: {words.RESULTS[row.result]}"), 2)
    different = [entry for entry in row.entries if entry.result != "same"]
    if all(words.what_differs(entry) == [words.RESULTS[row.result]] for entry in different):
        more = f" and {len(different) - MOST_ENTRIES:,} more" if len(different) > MOST_ENTRIES else ""
        page.line(", ".join(_address(entry) for entry in different[:MOST_ENTRIES]) + more, 4)
        return
    for entry in different[:MOST_ENTRIES]:
        what = words.what_differs(entry)
        if len(what) == 1:
            page.labelled(f"{_address(entry)}  ", what[0], 4)
        else:
            page.line(_address(entry), 4)
            for text in what:
                page.labelled("", text, 6)
    if len(different) > MOST_ENTRIES:
        page.line(f"and {len(different) - MOST_ENTRIES:,} more addresses", 4)


def _address(entry: EntryRow) -> str:
    return f"{entry.address} ({words.port_name(entry)})" if entry.port else entry.address


def _plan(page: _Page, plan: Plan) -> None:
    known = words.PLATFORMS.get(plan.platform)
    page.title(f"Plan for {known}" if known else "Plan")
    others = [name for platform, name in words.PLATFORMS.items() if platform != plan.platform]
    if known:
        page.line(f"-o markdown and -o html have it for {' and '.join(others)}, too", 2, "dim")
    for part, title in words.PARTS.items():
        steps: tuple[Step, ...] = getattr(plan, part)
        if steps:
            page.gap()
            page.line(title, 2, "underline")
        for number, step in enumerate(steps, 1):
            _step(page, step, number, plan.platform if known else "")


def _step(page: _Page, step: Step, number: int, platform: str) -> None:
    page.labelled(f"{number:>2}. ", step.title, 2, style="bold")
    if step.why:
        page.line(step.why, 6)
    for name, commands in _commands(step, platform):
        if name:
            page.line(f"{name}:", 6)
        notes = words.notes(commands)
        for note in notes:
            page.labelled("- ", note, 6)
        for command in () if notes else commands:
            page.verbatim(command, 8)


def _commands(step: Step, platform: str) -> Iterable[tuple[str, tuple[str, ...]]]:
    """(for whom, commands); for whom is '' where that goes without saying."""
    if "any" in step.commands:
        yield "", step.commands["any"]
    if platform:
        yield "", step.commands.get(platform, ())
        return
    for other, commands in step.commands.items():
        if other != "any":
            yield words.PLATFORMS.get(other, other), commands
