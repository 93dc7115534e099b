"""A report for people (text, coloured on a terminal) and for programs (JSON, YAML). Pure."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import yaml

from proxy.detect.evidence import (
    ConfiguredMode,
    Evidence,
    FeatureGate,
    IpvsInterface,
    IpvsOption,
    IpvsTable,
    Kernel,
    KubeChains,
    KubeSets,
    KubeTables,
    OtherProxy,
    Place,
    ServedMode,
    Unreadable,
    Version,
)
from proxy.detect.findings import Finding, Report, Severity
from proxy.detect.numbers import count
from proxy.detect.versions import NEWEST, URLS, show

WIDTH: Final = 100
_COLOURS: Final[dict[Severity, str]] = {"broken": "\033[1;31m", "deprecated": "\033[1;33m", "notice": "\033[1;36m"}
_BOLD, _PLAIN = "\033[1m", "\033[0m"
_INDENT: Final = " " * 12


def as_json(report: Report) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def as_line(report: Report) -> str:
    """The same JSON on one line."""
    return msgspec.json.encode(report).decode() + "\n"


def as_yaml(report: Report) -> str:
    # The dumper in C, where there is it: a report on thousands of nodes is long.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(msgspec.to_builtins(report), Dumper=dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    return text


def schema() -> bytes:
    """The JSON Schema of both."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Report)), indent=2) + b"\n"


def is_alarming(report: Report) -> bool:
    """Whether anything is deprecated or worse."""
    return any(finding.severity != "notice" for finding in report.findings)


def as_text(report: Report, *, colours: bool = False) -> str:
    """For a person: the findings, the worst first, each with what it rests on; then what else was found."""
    paint = Paint(colours)
    parts = [head(report, paint), *(paragraph(finding, paint) for finding in report.findings)]
    parts += [_rest(report), _summary(report.findings)]
    return "\n\n".join(filter(None, parts)) + "\n"


def describe(evidence: Evidence) -> str:
    """One line: where, and what."""
    text = f"{where(evidence.place)}: {_what(evidence)}"
    return text if evidence.sure == "certain" else f"{text} ({evidence.sure})"


def where(place: Place) -> str:
    text = " ".join(filter(None, [place.kind, place.name, place.part]))
    return f"{text}, line {place.line}" if place.line else text


def plain(text: str) -> str:
    """What a terminal would take for a command is shown as an escape: files and objects may hold anything."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Paint:
    """Colours, or none."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours

    def severity(self, severity: Severity) -> str:
        return self.coloured(f"{severity.upper():<11}", severity)

    def coloured(self, text: str, severity: Severity) -> str:
        return f"{_COLOURS[severity]}{text}{_PLAIN}" if self._colours else text

    def bold(self, text: str) -> str:
        return f"{_BOLD}{text}{_PLAIN}" if self._colours else text


def head(report: Report, paint: Paint) -> str:
    version = f"Kubernetes {plain(report.kubernetes)}"
    if not report.kubernetes:
        version = f"Kubernetes: version unknown, judged as {show(NEWEST)}, the newest known here (--kubernetes-version)"
    nodes = f"; nodes: {plain(', '.join(report.nodes))}" if 0 < len(report.nodes) <= 5 else ""
    return paint.bold(version) + nodes


def paragraph(finding: Finding, paint: Paint, nodes: str = "") -> str:
    """One finding in a few lines. nodes: those that it is about, where they are several."""
    kep = f"  [{finding.kep} {URLS[finding.kep]}]" if finding.kep in URLS else ""
    title = f"{finding.node}: {finding.title}" if finding.node and not nodes else finding.title
    lines = [f"{paint.severity(finding.severity)} {paint.bold(plain(title))}{kep}"]
    lines += _wrapped("on:    ", [nodes] if nodes else [])
    lines += _wrapped("found: ", [describe(item) for item in finding.evidence])
    lines += _wrapped("then:  ", [finding.explanation])
    lines += _wrapped("do:    ", [finding.remedy])
    return "\n".join(lines)


def _wrapped(label: str, texts: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for text in texts:
        first = _INDENT + (label if not lines else " " * len(label))
        lines += textwrap.wrap(
            plain(" ".join(text.split())),
            WIDTH,
            initial_indent=first,
            subsequent_indent=_INDENT + " " * len(label),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _rest(report: Report) -> str:
    """What was seen and is not worth a finding."""
    told = [item for finding in report.findings for item in finding.evidence]
    rest = [e for e in report.evidence if not isinstance(e, Unreadable | Version) and e not in told]
    about_proxies = [e for e in rest if not isinstance(e, Kernel)]
    if report.findings:
        title = "Found besides:" if rest else ""
    elif about_proxies:
        title = "Nothing to worry about. What was found:"
    else:
        other = any(e.place.kind == "port" for e in report.evidence)
        port = "on its port something else answers" if other else "nobody on its port"
        title = f"No kube-proxy was found: no configuration, no rules in the kernel, {port}."
    return "\n".join(filter(None, [title, *(f"  {plain(describe(item))}" for item in rest)]))


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    return ", ".join(f"{n} {word}" for word in _COLOURS if (n := counts[word]))


def _what(evidence: Evidence) -> str:
    match evidence:
        case ConfiguredMode(mode=mode, note=note, overridden=overridden, idle=idle):
            text = f"mode {mode}" if mode else "no mode is set"
            text += "; does not count" if overridden or idle else ""
            return f"{text}: {note}" if note else text
        case IpvsOption(name=name, value=value):
            return f"{name} is {value}"
        case FeatureGate(name=name, value=value):
            return f"feature gate {name}={'true' if value else 'false'}"
        case ServedMode(mode=mode):
            return f"kube-proxy runs in {mode} mode"
        case IpvsTable():
            schedulers = ", ".join(f"{name} {count}" for name, count in sorted(evidence.schedulers.items()))
            return (
                f"{count(evidence.services, 'IPVS virtual server')} ({evidence.kube} like kube-proxy's) with"
                f" {count(evidence.destinations, 'destination')}; schedulers: {schedulers or 'none'}"
            )
        case IpvsInterface(addresses=addresses):
            return f"it is there, with {count(addresses, 'address')}"
        case KubeChains(mode=mode, chains=chains, services=services):
            whose = f"of {mode} mode" if mode else "of kubelet"
            text = f"{count(chains, 'KUBE-* chain')} {whose}, {services} of them for Services"
            return f"{text}; no packet is led by them: emptied, or their table is dormant" if evidence.empty else text
        case KubeSets(sets=sets, entries=entries):
            return f"{sets} ipset{'' if sets == 1 else 's'} KUBE-* with {entries} entr{'y' if entries == 1 else 'ies'}"
        case KubeTables(owner=owner, chains=chains):
            text = f"the table of {owner}, {count(chains, 'chain')}"
            return f"{text}; it is dormant: none of its rules is in force" if evidence.dormant else text
        case OtherProxy(program=program):
            return f"{program} is here"
        case Kernel(release=release, ipvs=ipvs):
            words = {"present": ", with IPVS", "absent": ", kernel has no IPVS", "unknown": ""}
            return f"Linux {release}{words[ipvs]}"
        case Version(version=version, of=of):
            return f"{of} {version}"
        case Unreadable(cause=cause):
            return cause
