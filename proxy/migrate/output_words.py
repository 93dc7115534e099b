"""What all forms of the report share: its words, their order, and texts that cannot command the reader's program. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from proxy.detect.report import plain
from proxy.migrate.report import EntryRow, Finding, Report, Result, ServiceRow, Severity, Verdict
from proxy.migrate.wording import many

VERDICTS: Final[dict[Verdict, str]] = {
    "ready": "Ready",
    "ready-with-changes": "Ready, with changes",
    "unknown": "Not known",
    "blocked": "Blocked",
}
SEVERITIES: Final[tuple[Severity, ...]] = ("blocker", "change", "notice", "info")
RESULTS: Final[dict[Result, str]] = {
    "only-there": "only with kube-proxy",
    "endpoints": "other endpoints",
    "only-here": "only with kube-proxy-nft",
    "behaviour": "treated differently",
    "not-compared": "not compared",
    "same": "the same",
}
"""The most harmful first: only-here may be a Service that came a moment ago."""
MEANINGS: Final[dict[Result, str]] = {
    "only-there": "the proxy that runs now serves it, and kube-proxy-nft would not",
    "endpoints": "its connections go to other endpoints",
    "only-here": "kube-proxy-nft would serve it, and the proxy that runs now does not",
    "behaviour": "the same endpoints, otherwise treated differently",
    "not-compared": "what the proxy that runs now does with it could not be read, or not all of it",
    "same": "nothing changes",
}
PLATFORMS: Final = {"kubeadm": "kubeadm", "k3s": "k3s and RKE2", "daemonset": "a DaemonSet of your own"}
PARTS: Final = {
    "before": "Before, once for the cluster",
    "node": "On each node, one after the other",
    "after": "After the last node",
    "back": "The way back",
}
"""Of the plan, in its order."""
PROOFS: Final = {"accepted": "accepted by the kernel", "refused": "REFUSED by the kernel", "not-tried": "not tried"}
LABELS: Final = {
    "endpoints": "endpoints",
    "outside-endpoints": "endpoints for clients outside",
    "affinity": "session affinity",
    "sources": "allowed sources",
    "scheduler": "scheduler",
    "source-address": "client's address",
    "refusal": "without endpoints",
    "weights": "endpoints' shares",
    "rules": "rules",
}
"""Of a Difference's `what`."""

UNSEEN: Final = ("elsewhere", "rules-unread")
"""Findings that say that the node's rules could not be looked at, or not all of them."""

T = TypeVar("T")


def mapped(value: T, change: Callable[[str], str]) -> T:
    """The same structs, tuples and dicts with each text in them changed."""
    return _mapped(value, change)  # type: ignore[return-value]


def _mapped(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, Struct):
        return type(value)(*[_mapped(getattr(value, name), change) for name in value.__struct_fields__])
    return value


def readable(text: str) -> str:
    """Control characters, and those that turn the direction of writing, as escapes; lines stay lines."""
    return text if text.isprintable() else "\n".join(map(plain, text.replace("\r\n", "\n").split("\n")))


def differing(services: Iterable[ServiceRow]) -> list[ServiceRow]:
    """Those that do not come out the same, the most harmful first, else in the order that they came in."""
    return by_harm(row for row in services if row.result != "same")


def by_harm(services: Iterable[ServiceRow]) -> list[ServiceRow]:
    rank = {result: number for number, result in enumerate(RESULTS)}
    return sorted(services, key=lambda row: rank[row.result])


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def what_differs(entry: EntryRow) -> list[str]:
    """Of one address, such as: scheduler: now wlc, then random (ipvs-scheduler)."""
    if entry.result in ("only-there", "only-here", "not-compared") and not entry.differences:
        return [RESULTS[entry.result]]
    return [
        f"{LABELS.get(item.what, item.what)}: now {item.there or 'none'}, then {item.here or 'none'}"
        + (f" ({item.check})" if item.check else "")
        for item in entry.differences
    ]


def port_name(entry: EntryRow) -> str:
    """Of namespace/name:port the last part: the rest stands above it."""
    return entry.port.rpartition(":")[2] if "/" in entry.port else entry.port


def results(report: Report) -> str:
    """Such as: 28 the same, 3 treated differently, 1 only with kube-proxy."""
    numbers = {result: report.counts.results.get(result, 0) for result in reversed(RESULTS)}
    return ", ".join(f"{number:,} {RESULTS[result]}" for result, number in numbers.items() if number) or "none"


def sizes(report: Report) -> str:
    counts = report.counts
    return ", ".join(
        (
            many(counts.services, "Service"),
            many(counts.service_ports, "port"),
            many(counts.entries, "address"),
            many(counts.endpoints, "endpoint"),
        )
    )


def notes(commands: Sequence[str]) -> list[str]:
    """The texts of commands that are comments only: something to do that no shell can. [] if there are others."""
    texts = [command.removeprefix("# ") for command in commands if command.startswith("# ")]
    return texts if len(texts) == len(commands) else []


def present_proxy(report: Report) -> str:
    """Such as: kube-proxy v1.36.2, mode ipvs (ConfigMap kube-system/kube-proxy); rules in the kernel: ipvs."""
    present = report.present
    mode = f"mode {present.mode}" if present.mode else "its mode is not known"
    if present.mode and not present.mode_is_set:
        mode += " (not set: the default)"
    text = f"kube-proxy {present.version}".rstrip() + f", {mode}"
    if present.source:
        text += f", configured by {present.source}"
    unseen = any(finding.check in UNSEEN for finding in report.findings)
    none = "they could not be read" if unseen else "none were found"
    return f"{text}; rules in the kernel: {', '.join(present.dataplanes) or none}"


def proof(report: Report) -> list[str]:
    """A sentence, and what the kernel or the attempt said."""
    found = report.proof
    kernel = f" {found.kernel}" if found.kernel else ""
    match found.status:
        case "accepted":
            text = (
                f"The kernel{kernel} accepted the whole ruleset in a network namespace of its own:"
                f" {many(found.elements, 'element')}, {size(found.bytes)}, in {found.milliseconds:,.0f} ms."
            )
        case "refused":
            text = f"The kernel{kernel} refused the ruleset in a network namespace of its own."
        case "not-tried":
            text = "The ruleset was not tried in a kernel."
    return [text, found.detail] if found.detail and found.status != "accepted" else [text]


def size(number: int) -> str:
    if number < 10_000:
        return many(number, "byte")
    return f"{number / 1000:,.0f} kB" if number < 1_000_000 else f"{number / 1_000_000:,.1f} MB"


def not_compared() -> str:
    return "There were no rules to compare with, or they could not be read: nothing is said about what runs now."
