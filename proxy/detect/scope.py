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
    Kernel,
    KubeChains,
    KubeSets,
    KubeTables,
    ServedMode,
    Sure,
    Unreadable,
)
from proxy.detect.findings import Finding
from proxy.detect.versions import GATE, Row, Version

_SURE: Final[dict[Sure, int]] = {"certain": 0, "likely": 1, "possible": 2}
MODES: Final = ("iptables", "ipvs", "nftables")
"""On Linux."""
WINDOWS_MODE: Final = "kernelspace"
OURS: Final = "kube-proxy-nft"
E = TypeVar("E", bound=Evidence)


class Scope(Struct, frozen=True):
    """What is judged together: the evidence of one node, and what the cluster as a whole says of it. guessed: nothing
    says the version."""

    node: str
    evidence: tuple[Evidence, ...]
    cluster: tuple[Evidence, ...]
    version: Version
    guessed: bool = False

    def of(self, kind: type[E]) -> list[E]:
        return [e for e in self.evidence if isinstance(e, kind)]

    def configured(self) -> list[ConfiguredMode]:
        """The configurations that decide, where a kube-proxy runs or would be started with them."""
        return [e for e in self.of(ConfiguredMode) if not e.overridden]

    def system(self, configured: ConfiguredMode) -> str:
        """As ConfiguredMode.os; this node's kernel tells it, too."""
        return configured.os or ("linux" if self.of(Kernel) else "")

    def fits(self, configured: ConfiguredMode) -> bool:
        """Whether its operating system has the mode that it names, as far as the two are known."""
        wanted = "windows" if configured.mode == WINDOWS_MODE else "linux" if configured.mode in MODES else ""
        return wanted in ("", self.system(configured)) or not self.system(configured)

    def gate(self) -> FeatureGate | None:
        """What decides about IPVS mode, if anything is set: beside the mode in force, on this node, in the cluster."""
        said = self.in_force()
        idle = {(e.place.kind, e.place.name) for e in self.of(ConfiguredMode) if e.idle} if said else ()
        gates = [e for e in (*self.evidence, *self.cluster) if isinstance(e, FeatureGate) and e.name == GATE]
        gates = [e for e in gates if (e.place.kind, e.place.name) not in idle]
        same = [e for e in gates if said and (e.place.kind, e.place.name) == (said.place.kind, said.place.name)]
        return next(iter(same or gates), None)

    def in_force(self) -> ServedMode | ConfiguredMode | None:
        """What says most surely which mode runs here; None: nothing does."""
        configured = [e for e in self.cluster if isinstance(e, ConfiguredMode) and not e.overridden]
        here = [e for e in (*self.configured(), *configured) if not e.idle]
        said: list[ServedMode | ConfiguredMode] = [*self.of(ServedMode), *here]
        return min(said, key=lambda e: (not isinstance(e, ServedMode), _SURE[e.sure]), default=None)

    def mode(self) -> str:
        """The mode in force, an unset one resolved to the version's default; '' when nothing says it, or there is no
        such mode."""
        said = self.in_force()
        if said is None:
            return ""
        if isinstance(said, ConfiguredMode) and not self.fits(said):
            return ""
        if said.mode:
            return said.mode if said.mode in (*MODES, WINDOWS_MODE) else ""
        return "nftables" if self.version >= (1, 40) and not self.is_set_by_its_tool(said) else "iptables"

    def is_set_by_its_tool(self, said: ServedMode | ConfiguredMode) -> bool:
        """Whether the tool whose file this is names a mode itself."""
        since = versions.parse(said.sets_from) if isinstance(said, ConfiguredMode) else None
        return since is not None and self.version >= since

    def has_ours_alone(self) -> bool:
        """kube-proxy-nft runs here, and nothing says that a kube-proxy does."""
        return self.in_force() is None and any(e.owner == OURS and e.running for e in self.of(KubeTables))

    def ipvs_in_kernel(self) -> list[Evidence]:
        """What only a kube-proxy in IPVS mode leaves, unless it is no more than a shell."""
        return [] if self._ipvs_shell() else self._of_ipvs()

    def _of_ipvs(self) -> list[Evidence]:
        return [
            *(e for e in self.of(IpvsTable) if e.kube),
            *self.of(IpvsInterface),
            *(e for e in self.of(KubeChains) if e.mode == "ipvs" and not e.empty),
            *self.of(KubeSets),
        ]

    def _ipvs_shell(self) -> list[Evidence]:
        """kube-ipvs0 without addresses and ipsets without entries, with no virtual servers beside them. A kube-proxy that
        has synced has those of default/kubernetes at least; one that is about to says its mode. What could not be read
        may be there."""
        found = self._of_ipvs()
        for item in found:
            if not isinstance(item, IpvsInterface | KubeSets) or _holds_anything(item):
                return []
        has_servers = any(isinstance(e, IpvsInterface) for e in found) and any(e.services for e in self.of(IpvsTable))
        everything = (*self.evidence, *self.cluster)
        is_said = any(isinstance(e, ServedMode | ConfiguredMode) and _says_ipvs(e) for e in everything)
        is_blind = any(isinstance(e, Unreadable) and not e.harmless for e in everything)
        return [] if has_servers or is_said or is_blind else found

    def at_work(self) -> dict[str, list[Evidence]]:
        """Rules of a kube-proxy that packets come to, by their mode."""
        found: dict[str, list[Evidence]] = {
            "ipvs": self.ipvs_in_kernel(),
            "iptables": [e for e in self.of(KubeChains) if e.mode == "iptables" and e.services and not e.empty],
            "nftables": [e for e in self.of(KubeTables) if e.owner == "kube-proxy" and not e.dormant],
        }
        return {mode: traces for mode, traces in found.items() if traces}

    def idle(self) -> dict[str, list[Evidence]]:
        """The same of what no packet comes to: chains with nothing in them, dormant tables, a kube-ipvs0 and ipsets without
        anything."""
        empty = [e for e in self.of(KubeChains) if e.empty]
        found: dict[str, list[Evidence]] = {
            "ipvs": [*self._ipvs_shell(), *(e for e in empty if e.mode == "ipvs")],
            "iptables": [e for e in empty if e.mode == "iptables"],
            "nftables": [e for e in self.of(KubeTables) if e.owner == "kube-proxy" and e.dormant],
        }
        return {mode: traces for mode, traces in found.items() if traces}


def _holds_anything(item: IpvsInterface | KubeSets) -> bool:
    return bool(item.addresses if isinstance(item, IpvsInterface) else item.entries)


def _says_ipvs(item: ServedMode | ConfiguredMode) -> bool:
    """That a kube-proxy runs, or is started, in IPVS mode."""
    return item.mode == "ipvs" and not (isinstance(item, ConfiguredMode) and (item.overridden or item.idle))


def by_row(
    scope: Scope,
    check: str,
    kep: str,
    title: str,
    row: Row | None,
    rows: tuple[Row, ...],
    evidence: Sequence[Evidence],
    mode: str = "",
    who: str = "",
) -> Finding:
    """A finding whose severity and words are a row of the version table; before the first row it is a notice. who: of
    which kube-proxy it speaks, if not of this node's."""
    later = [f"{versions.show(r.since)}: {r.what}" for r in rows if r.since > scope.version]
    here = f"with Kubernetes {versions.show(scope.version)}, " + (row.what if row else "nothing happens yet")
    here = ("the cluster's version is not known; " if scope.guessed else "") + (f"{who}: " if who else "") + here
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
