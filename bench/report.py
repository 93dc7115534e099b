"""What was measured, as tables for people: 120 columns."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from bench import dataplane_report
from bench.dataplane_services import Size
from bench.figures import CHANGE, GROUPS, LAYOUT, Figure, Results, Value, of_group, ratio_text
from bench.plan import title

WIDTH: Final = 120


def text(document: Mapping[str, Any], *, colour: bool = False) -> str:
    """All tables, with what is to be known to read them."""
    results = Results(document)
    stream = io.StringIO()
    console = Console(file=stream, width=WIDTH, force_terminal=colour, no_color=not colour, highlight=False)
    for line in _head(document):
        console.print(line, markup=False)
    for group, caption in GROUPS.items():
        table = _changes(results) if group == CHANGE else _table(results, group)
        if table.row_count:
            console.print(f"\n{caption}", style="bold", markup=False)
            console.print(table)
    if document["dataplane"]:
        console.print("\nThe data plane", style="bold")
        for line in _dataplane(document["dataplane"]):
            console.print(line, markup=False, soft_wrap=True)
    for failure in document["failures"]:
        where = " ".join(filter(None, [failure["size"], failure["subject"]]))
        console.print(f"\nfailed: {where}, {failure['during']}: {failure['cause']}", markup=False)
        for line in failure["log"]:
            console.print(f"    {line}", markup=False, overflow="fold")
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _dataplane(found: Mapping[str, Any]) -> Iterator[str]:
    try:
        yield from dataplane_report.lines(found)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:  # no reason to lose the tables of twenty minutes
        yield f"cannot be shown ({type(error).__name__}: {error}): see the JSON"


def _head(document: Mapping[str, Any]) -> Iterator[str]:
    machine = document["machine"]
    yield (
        f"{machine['cpu'] or 'unknown CPU'}, {machine['cores']} cores, {machine['memory']:,} MB, "
        f"Linux {machine['kernel']}, {machine['system']}, Python {machine['python']}"
    )
    changed = " with changes" if machine["changed"] else ""
    commit = f"commit {machine['commit'][:12]}{changed}" if machine["commit"] else "no git checkout"
    yield f"kube-proxy-nft {machine['version']}, {commit}; {document['began']}, {document['seconds']:.0f} s; load {machine['load'][0]:.2f}"
    servers = {"stand-in": "an API server's stand-in", "kube-apiserver": "a real kube-apiserver"}
    yield f"Objects come from {servers[document['server']]}."
    yield "Medians; in brackets the lowest and the highest, of more than 20 samples the quartiles; ratios are to"
    yield "kube-proxy-nft's figures. > N s: given up after N seconds."
    for warning in document["warnings"]:
        yield f"Warning: {warning}"
    if document["stopped"]:
        yield f"Not complete: {document['stopped']}"


def _table(results: Results, group: str) -> Table:
    figures = list(of_group(group))
    part = figures[0].part
    table = _empty("size", "", *(figure.title for figure in figures))
    subjects = results.subjects(part)
    for size in results.sizes(part):
        for number, subject in enumerate(subjects):
            values = [results.value(size, subject, figure.key) for figure in figures]
            if any(values):
                cells = [
                    _cell(results, size, subject, subjects[0], figure, value)
                    for figure, value in zip(figures, values, strict=True)
                ]
                last = number == len(subjects) - 1
                table.add_row(_title(size) if not number else "", subject, *cells, end_section=last and group == LAYOUT)
    return table


def _changes(results: Results) -> Table:
    """A row for each kind of change: there are too many numbers for one."""
    table = _empty("size", "", "change", "p50", "p90", "p99", "n")
    subjects = results.subjects("control")
    for size in results.sizes("control"):
        for figure in of_group(CHANGE):
            for number, subject in enumerate(subjects):
                value = results.value(size, subject, figure.key)
                if value is None:
                    continue
                cells = [
                    _cell(
                        results,
                        size,
                        subject,
                        subjects[0],
                        figure,
                        results.value(size, subject, figure.key, share),
                        share,
                    )
                    for share in (0.5, 0.9, 0.99)
                ]
                first = figure is next(of_group(CHANGE)) and not number
                table.add_row(
                    _title(size) if first else "",
                    subject,
                    figure.title,
                    *cells,
                    f"{value.count:,}" if value.count else "",
                )
    return table


def _cell(
    results: Results, size: str, subject: str, to: str, figure: Figure, value: Value | None, share: float = 0.5
) -> str:
    if value is None:
        return "–"
    said = value.text(figure.digits)
    if subject == to or not figure.unit:
        return said
    ratio = ratio_text(results.ratio(size, subject, figure.key, to, share), at_least=value.limit is not None)
    return f"{said}{' ' if figure.group == LAYOUT else chr(10)}{ratio}".rstrip()


def _empty(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), header_style="")
    for number, name in enumerate(columns):
        text = name in ("size", "", "change")
        table.add_column(name, justify="left" if text else "right", overflow="fold", no_wrap=number < 2)
    return table


def _title(size: str) -> str:
    return title(Size.of(size))
