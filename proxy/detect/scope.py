"""What is judged together, and the words of a finding that follows the version table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from msgspec import Struct

from proxy.detect import versions
from proxy.detect.evidence import (
    ConfiguredMode,
    Evidence,
    FeatureGate,
    IpvsInterface,
    IpvsTable,
    KubeChains,
    KubeSets,
    ServedMode,
    Sure,
)
from proxy.detect.findings import Finding
from proxy.detect.versions import GATE, Row, Version

_SURE: Final[dict[Sure, int]] = {"certain": 0, "likely": 1, "possible": 2}
E = TypeVar("E", bound=Evidence)


class Scope(Struct, frozen=True):
    """What is judged together: the evidence of one node, and what the cluster as a whole says of it."""

    node: str
    evidence: tuple[Evidence, ...]
    cluster: tuple[Evidence, ...]
    version: Version

    def of(self, kind: type[E]) -> list[E]:
        return [e for e in self.evidence if isinstance(e, kind)]

    def configured(self) -> list[ConfiguredMode]:
        """The configurations that decide."""
        return [e for e in self.of(ConfiguredMode) if not e.overridden]

    def gate(self) -> FeatureGate | None:
        """What decides about IPVS mode, if anything is set: on this node, else in the cluster."""
        gates = [e for e in (*self.evidence, *self.cluster) if isinstance(e, FeatureGate) and e.name == GATE]
        return gates[0] if gates else None

    def in_force(self) -> ServedMode | ConfiguredMode | None:
        """What says most surely which mode runs here; None: nothing does."""
        configured = [e for e in self.cluster if isinstance(e, ConfiguredMode) and not e.overridden]
        said: list[ServedMode | ConfiguredMode] = [*self.of(ServedMode), *self.configured(), *configured]
        return min(said, key=lambda e: (not isinstance(e, ServedMode), _SURE[e.sure]), default=None)

    def mode(self) -> str:
        """The mode in force, an unset one resolved to the version's default; '' when nothing says it."""
        said = self.in_force()
        if said is None:
            return ""
        return said.mode or ("nftables" if self.version >= (1, 40) else "iptables")

    def ipvs_in_kernel(self) -> list[Evidence]:
        """What only a kube-proxy in IPVS mode leaves."""
        return [
            *(e for e in self.of(IpvsTable) if e.kube),
            *self.of(IpvsInterface),
            *(e for e in self.of(KubeChains) if e.mode == "ipvs"),
            *self.of(KubeSets),
        ]


def by_row(
    scope: Scope,
    check: str,
    kep: str,
    title: str,
    row: Row | None,
    rows: tuple[Row, ...],
    evidence: Sequence[Evidence],
    mode: str = "",
) -> Finding:
    """A finding whose severity and words are a row of the version table; before the first row it is a notice."""
    later = [f"{versions.show(r.since)}: {r.what}" for r in rows if r.since > scope.version]
    here = f"with Kubernetes {versions.show(scope.version)}, " + (row.what if row else "nothing happens yet")
    return Finding(
        check=check,
        severity=row.severity if row else "notice",
        title=title,
        explanation="; from ".join([here, *later]),
        remedy=(row or rows[0]).remedy,
        evidence=tuple(sorted(evidence, key=lambda e: _SURE[e.sure])),
        mode=mode,
        kep=kep,
        node=scope.node,
        breaks_in=versions.breaks_in(rows),
        milestones=versions.milestones(rows),
    )
