"""Ready, ready with changes, not known, or blocked; and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proxy.migrate.report import Finding, Verdict
from proxy.model import ENDPOINT_SLICE, SERVICE
from proxy.unread import PLURAL

_MUST: Final = (SERVICE, ENDPOINT_SLICE)
"""Without these nothing can be said."""


def verdict(
    findings: Sequence[Finding], unread: frozenset[str], *, compared: bool, seen: bool = True
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict and its reasons, the weightiest first. unread: kinds of objects that were not, or not all, read.
    seen: the node's rules could be looked at; if not so, and nothing was compared, nobody knows whether it is ready."""
    reasons = [
        f"{PLURAL[kind]} could not be read, so nothing is known of what would change"
        for kind in _MUST
        if kind in unread
    ]
    reasons += [finding.title for finding in findings if finding.severity == "blocker"]
    if reasons:
        return "blocked", tuple(reasons)
    reasons = [finding.title for finding in findings if finding.severity == "change"]
    if not compared and not seen:
        return "unknown", ("not compared: the rules that are on the node could not be read here", *reasons)
    found: Verdict = "ready-with-changes" if reasons else "ready"
    if not compared:
        reasons.append("not compared: no rules of a running proxy were read here")
    return found, tuple(reasons)
