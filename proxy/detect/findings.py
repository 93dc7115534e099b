"""What evidence means: the detector's answers. Plain data; the JSON and YAML outputs are these structs."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from proxy.detect.evidence import Evidence

SCHEMA = "kube-proxy-nft/detect/v1"

Severity = Literal["notice", "deprecated", "broken"]
"""notice: worth knowing, or it begins with a later version than the cluster's. deprecated: the cluster's version warns of it
already. broken: it does not work with the cluster's version or on this node, or contradicts itself."""


class Milestone(Struct, frozen=True):
    """What happens from a version of Kubernetes on: ("1.40", "kube-proxy exits unless the gate is set")."""

    version: str
    what: str


class Finding(Struct, frozen=True, kw_only=True):
    """check: a stable identifier, such as "ipvs-mode". breaks_in: the first version with which it stops working, ''
    when that is never or already. `evidence`: what it rests on, the surest first."""

    check: str
    severity: Severity
    title: str
    explanation: str
    remedy: str
    evidence: tuple[Evidence, ...]
    mode: str = ""
    kep: str = ""
    node: str = ""
    breaks_in: str = ""
    milestones: tuple[Milestone, ...] = ()


class Report(Struct, frozen=True, kw_only=True):
    """kubernetes: the version it was judged by, '' when unknown. nodes: those that were looked at."""

    schema: str = SCHEMA
    kubernetes: str = ""
    nodes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    evidence: tuple[Evidence, ...] = ()
