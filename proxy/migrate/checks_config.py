"""The present proxy's configuration, and what the detector says of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from proxy.detect import judge
from proxy.migrate.case import Case, finding
from proxy.migrate.report import Finding, Severity
from proxy.node_families import concerns
from rules.objects import Family

ELSEWHERE: Final = frozenset(
    {
        "mode",
        "--proxy-mode",
        "ipvs.scheduler",
        "ipvs.excludeCIDRs",
        "ipvs.strictARP",
        "ipvs.tcpTimeout",
        "ipvs.tcpFinTimeout",
        "ipvs.udpTimeout",
        "iptables.masqueradeBit",
        "iptables.masqueradeAll",
        "iptables.localhostNodePorts",
    }
)
"""Fields that other checks speak of."""


def refused(case: Case) -> Iterator[Finding]:
    """kube-proxy-nft would not start with it."""
    present = case.facts.present
    cause = case.ours.config_error or (present.refused and f"{present.source}: {present.refused}")
    if cause:
        instead = "with the defaults in its place" if case.ours.config_error else "with what of it could be used"
        yield finding(
            "config-refused",
            "blocker",
            "kube-proxy-nft does not start with this configuration",
            f"{cause}. (This report was made {instead}.)",
            "correct it; `kube-proxy-nft config check FILE` says when it is right",
            [present.source or "the present configuration"],
        )


def unknown(case: Case) -> Iterator[Finding]:
    """No configuration was found."""
    if not case.facts.present.document and not case.facts.present.source:
        yield finding(
            "config-unknown",
            "change",
            "The present proxy's configuration is not known",
            "This report was made with the defaults: without the pods' range (clusterCIDR), and NodePorts at the node's"
            " primary addresses.",
            "give it with --config FILE, or run this where it can be read",
        )


def fields(case: Case) -> Iterator[Finding]:
    """Fields that do nothing here, and those that nobody knows."""
    idle = [f"{path}: {reason}" for path, reason in case.ours.config.without_effect if path not in ELSEWHERE]
    if idle:
        yield finding(
            "config-without-effect",
            "info",
            "Parts of the configuration have no effect here",
            "kube-proxy-nft takes kube-proxy's configuration as it is, and has no use for these.",
            "nothing",
            idle,
        )
    unknown = dict.fromkeys((*case.ours.config.warnings, *case.facts.present.unknown))
    for severity, misspelt in _UNKNOWN:
        found = [f"{path}: {reason}" for path, reason in unknown if (_MEANT in reason) == misspelt]
        if found:
            yield finding(
                "config-unknown-fields",
                severity,
                "The configuration has fields that are misspelt"
                if misspelt
                else "The configuration has fields that no kube-proxy knows",
                "They have no effect, in kube-proxy either; a misspelt one does not do what it was meant for. The rules that"
                " are there now may be of another configuration.",
                "correct or remove them",
                found,
            )


_MEANT: Final = "did you mean"
_UNKNOWN: Final[tuple[tuple[Severity, bool], ...]] = (("change", True), ("notice", False))
"""Severity, and whether it is a field that is nearly one that there is."""


def doubtful(case: Case) -> Iterator[Finding]:
    """Settings that hardly mean what they say, on this node."""
    node = case.ours.state.node
    found = concerns(
        case.ours.config, frozenset(Family), case.ours.addresses, node.pod_cidrs if node and node.exists else ()
    )
    if found and case.facts.present.document:
        yield finding(
            "config-doubtful",
            "notice",
            "The configuration may be incomplete",
            "; ".join(f"{concern.field}: {concern.cause}" for concern in found),
            "; ".join(dict.fromkeys(concern.remedy for concern in found)),
            list(dict.fromkeys(concern.field for concern in found)),
        )


_FOLDED: Final[dict[str, Severity | None]] = {
    "ipvs-mode": "notice",  # this report is the way out
    "mode-unset": "notice",
    "ipvs-gate": "notice",
    "modes-differ": "notice",
    "ipvs-servers": "notice",
    # Spoken of by other checks, or gaps.
    "ipvs-options": None,
    "kernel-too-old": None,
    "kernel-without-ipvs": None,
    "unreadable": None,
    "config-refused": None,
}
_OF_RULES: Final = frozenset({"two-dataplanes", "ipvs-leftover", "iptables-leftover", "nftables-leftover"})
"""The rules themselves tell, where they were read."""
_SEVERITIES: Final[dict[str, Severity]] = {"broken": "change", "deprecated": "notice", "notice": "info"}
DETECTED: Final = (
    *("ipvs-mode", "mode-unset", "mode-unknown", "ipvs-gate", "modes-differ", "two-proxies", "ipvs-servers"),
    *("ipvs-leftover", "iptables-leftover", "nftables-leftover"),
)
"""Identifiers that come from the detector (docs/detect.md)."""


_FIRST_WORDS: Final = frozenset(
    {"a", "configurations", "idle", "in", "it", "one", "the", "they", "two", "whichever", "with"}
)


def _sentence(text: str) -> str:
    """With a capital letter, unless it begins with a name."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0] in _FIRST_WORDS else text


def detected(case: Case) -> Iterator[Finding]:
    """What `kube-proxy-nft detect` says of the mode and its future."""
    told = judge.judge(case.facts.evidence, case.facts.cluster_version)
    for one in told.findings:
        severity = _FOLDED.get(one.check, _SEVERITIES[one.severity])
        if severity is None or (one.check in _OF_RULES and (case.comparison.others or one.check == "two-dataplanes")):
            continue
        if one.node and one.node != case.facts.node:
            continue
        later = "; ".join(f"with {m.version}: {m.what}" for m in one.milestones if m.what not in one.explanation)
        yield finding(
            one.check,
            severity,
            _sentence(one.title),
            _sentence(one.explanation) + (f" ({later})" if later else ""),
            one.remedy,
            list(dict.fromkeys(f"{e.place.kind} {e.place.name}" for e in one.evidence)),
            one.kep,
        )
