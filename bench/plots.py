"""Plots of time against the number of Services, as SVG: both axes logarithmic, labels at the lines themselves.

matplotlib comes with the extra `bench`, and is imported here only. The background is white, so that they can be read in light and
dark surroundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import others
from bench.dataplane_rules import IPTABLES_LEGACY, IPTABLES_NFT, NFTABLES, OURS
from bench.dataplane_services import Size
from bench.figures import Results, Value, per_second

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES: Final = (8.4, 4.6)
COLOURS: Final = ("#0057b8", "#c2410c", "#0f766e", "#7e22ce", "#525252")
"""All with a contrast of more than 4.5 to white. The first one is ours."""
_SETTINGS: Final[Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "kube-proxy-nft",  # the same figures give the same file
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#525252",
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@dataclass(frozen=True)
class Line:
    """label: at its end. values: size and value, a limit where it was given up. per_second: a second in the plot's unit."""

    label: str
    values: Sequence[tuple[Size, Value]]
    colour: str
    dashed: bool = False
    per_second: float = 1.0


@dataclass(frozen=True)
class Plot:
    """name: of the file, without .svg. unit: of the vertical axis. legend: what points and bars are."""

    name: str
    heading: str
    unit: str
    lines: Sequence[Line]
    legend: str = "Median; bars: lowest to highest (quartiles of more than 20 samples)"


def plots(document: Mapping[str, Any]) -> list[Plot]:
    """Those that there are figures for."""
    results = Results(document)
    control, layouts = results.subjects("control"), results.subjects("layouts")

    def line(subject: str, part: str, figure: str, label: str, share: float = 0.5, dashed: bool = False) -> Line:
        names = control if part == "control" else layouts
        found = [(Size.of(size), results.value(size, subject, figure, share)) for size in results.sizes(part)]
        values = [(size, value) for size, value in found if value]
        return Line(label, values, COLOURS[names.index(subject) % len(COLOURS)], dashed, per_second(figure))

    made = [
        Plot(
            "start",
            "From the start of the process to all rules in the kernel",
            "seconds",
            [
                line(subject, "control", figure, f"{subject}: {what}", dashed=what == "restart")
                for subject in control
                for figure, what in (("start_s", "start"), ("restart_s", "restart"))
            ],
        ),
        Plot(
            "latency",
            "One endpoint changes: API event to the kernel's commit",
            "milliseconds",
            [
                line(subject, "control", "endpoint_ms", f"{subject}: p{share * 100:.0f}", share, dashed=share > 0.5)
                for subject in control
                for share in (0.5, 0.99)
            ],
            "Percentiles of all changes; bars: of single rounds",
        ),
        Plot(
            "load",
            "All rules into an empty kernel: layouts side by side",
            "seconds",
            [line(subject, "layouts", "load_s", subject) for subject in layouts],
        ),
        Plot(
            "change",
            "One endpoint changes: what each layout has to commit",
            "milliseconds",
            [line(subject, "layouts", "change_ms", subject) for subject in layouts],
        ),
    ]
    if document["dataplane"]:
        made.append(_connect(document["dataplane"]))
    return [plot for plot in made if any(line.values for line in plot.lines)]


def _connect(found: Mapping[str, Any]) -> Plot:
    """Held against one node for all: against its own direct connections, iptables' clusterIPs would be quicker than nothing.
    Values of 0 or less have no place on a logarithmic axis: they are left out."""
    lines = []
    names = (OURS, NFTABLES, IPTABLES_NFT, IPTABLES_LEGACY)
    for name, colour in zip(names, COLOURS, strict=False):
        for way in ("clusterIP", "direct"):
            values = []
            for size, by_origin in found["connect"].items():
                figures = by_origin["pod"]["tcp"].get(name, {}).get(way)
                if figures and figures["above no nat"]["low"] > 0:
                    more = figures["above no nat"]
                    values.append((Size.of(size), Value(more["median"], more["low"], more["high"], 1)))
            label = f"{'kube-proxy-nft' if name == OURS else name}: {way}"
            lines.append(Line(label, values, colour, dashed=way == "direct"))
    heading = "connect() from a pod: more than on a node without nat"
    return Plot("connect", heading, "microseconds", lines, "Median; bars: 95 % confidence")


def draw(document: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write them all. Returns the files. Raises ImportError where there is no matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    written = []
    with matplotlib.rc_context(_SETTINGS):
        for plot in plots(document):
            figure, axes = pyplot.subplots(figsize=INCHES, layout="constrained")
            _draw(axes, plot)
            figure.supxlabel(_foot(plot, document), fontsize=8, color="#525252")
            path = directory / f"{plot.name}.svg"
            figure.savefig(path, metadata={"Date": None, "Title": plot.heading})
            pyplot.close(figure)
            written.append(path)
    return written


def _draw(axes: Axes, plot: Plot) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    ends: list[tuple[float, str, str]] = []
    for line in plot.lines:
        joined, apart = _joined(line.values)
        y = _height(line)
        style = "--" if line.dashed else "-"
        axes.plot(
            [size.services for size, _ in joined],
            [y(value) for _, value in joined],
            style,
            color=line.colour,
            linewidth=2,
        )
        for size, value in line.values:
            _point(axes, size, value, y, line, alone=(size, value) in apart)
        if line.values:
            ends.append((y(joined[-1][1]), line.label, line.colour))
    sizes = {size for line in plot.lines for size, _ in line.values}
    joined, _ = _joined([(size, Value()) for size in sizes])
    ticks = {size.services: f"{size.services:,}\n× {size.endpoints}" for size, _ in joined}
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: ticks.get(round(x), "")))
    bottom, top = axes.get_ylim()
    bottom, top = bottom / 1.3, top * 1.3
    axes.set_ylim(bottom, top)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if top / bottom > 1000 else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
    axes.set_xlabel("Services × endpoints of each")
    axes.set_ylabel(plot.unit)
    axes.set_title(plot.heading, loc="left", fontweight="bold", fontsize=11)
    _label(axes, ends)


def _joined(values: Sequence[tuple[Size, Value]]) -> tuple[list[tuple[Size, Value]], list[tuple[Size, Value]]]:
    """Those that a line joins, from left to right, and those that stand apart: with more endpoints than another of as many Services."""
    joined: dict[int, tuple[Size, Value]] = {}
    apart = []
    for size, value in sorted(values, key=lambda each: (each[0].services, each[0].endpoints)):
        if size.services in joined:
            apart.append((size, value))
        else:
            joined[size.services] = (size, value)
    return list(joined.values()), apart


def _height(line: Line) -> Callable[[Value], float]:
    return lambda value: value.middle if value.limit is None else value.limit * line.per_second


def _point(axes: Axes, size: Size, value: Value, y: Callable[[Value], float], line: Line, *, alone: bool) -> None:
    marker = "^" if value.limit is not None else "D" if alone else "o"
    spread = None if value.limit is not None else [[value.middle - value.low], [value.high - value.middle]]
    axes.errorbar(
        [size.services],
        [y(value)],
        yerr=spread,
        fmt=marker,
        color=line.colour,
        markerfacecolor="white" if alone or value.limit is not None else line.colour,
        markersize=6,
        elinewidth=1,
        capsize=2,
    )
    if alone:
        axes.annotate(
            f"× {size.endpoints}", (size.services, y(value)), xytext=(5, 5), textcoords="offset points",
            fontsize=8, color=line.colour,
        )  # fmt: skip


def _label(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """At the right of the lines, moved apart where they would cover each other."""
    bottom, top = axes.get_ylim()
    ordered = sorted(ends)
    for place, (_, label, colour) in zip(
        apart([_share(y, bottom, top) for y, _, _ in ordered], 0.055), ordered, strict=True
    ):
        axes.annotate(
            label, (1.01, place), xycoords="axes fraction", va="center", fontsize=9, color=colour, annotation_clip=False
        )


def apart(places: Sequence[float], least: float) -> list[float]:
    """These ascending places from 0 to 1, moved so that there is `least` between two of them, and none is above 1."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + least) if found else place)
    highest = 1.0
    for i in reversed(range(len(found))):
        found[i] = min(found[i], highest)
        highest = found[i] - least
    return found


def _foot(plot: Plot, document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    return (
        f"{plot.legend}; ▲: given up{_disturbed(document)}. {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"commit {machine['commit'][:12] or 'unknown'}"
    )


def _disturbed(document: Mapping[str, Any]) -> str:
    found = document.get("others")
    return f"; others used {found['cpu_percent']:.0f} % of the CPUs" if found and others.warning(found) else ""


def _share(y: float, bottom: float, top: float) -> float:
    return math.log(y / bottom) / math.log(top / bottom)
