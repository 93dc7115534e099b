"""What the checks look at, and how they say what they find. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from proxy.detect import versions
from proxy.detect.versions import Version
from proxy.migrate.compare import Comparison
from proxy.migrate.entries import Dataplane, Entry
from proxy.migrate.facts import Facts
from proxy.migrate.ours import Ours
from proxy.migrate.report import Finding, Proof, Severity
from rules.elements import ServicePort, is_node_port

MOST_OBJECTS: Final = 1000
IPTABLES_BASED: Final = ("iptables", "ipvs")
"""Modes that use iptables: their section of the configuration, their chain KUBE-FORWARD."""

PROXIES: Final = frozenset({"kube-proxy", "kube-proxy-nft", "k3s", "k3s-server", "k3s-agent", "rke2", "hyperkube"})
"""Programs that listen for a kube-proxy, under the names that the kernel has of them."""


class Case(Struct, frozen=True):
    """facts: as gathered. ours: what we make of them. comparison: of the live rules with that. proof: see report.Proof."""

    facts: Facts
    ours: Ours
    comparison: Comparison
    proof: Proof

    @property
    def mode(self) -> str:
        """Of the proxy that runs; what its rules are of, where nothing says it; "" if that is not known, either."""
        return self.facts.present.mode or self.comparison.mode

    @property
    def version(self) -> Version | None:
        """Of the proxy that runs; the cluster's, where that is not known."""
        return versions.parse(self.facts.present.version) or versions.parse(self.facts.cluster_version)

    @property
    def live(self) -> Dataplane | None:
        return self.comparison.dataplane

    def entries(self, mode: str) -> tuple[Entry, ...]:
        """Of the live rules, if they are of this mode."""
        return self.live.entries if self.live and self.live.mode == mode else ()

    def section(self, name: str) -> dict[str, object]:
        """A section of the present proxy's configuration; {} if there is none."""
        found = self.facts.present.document.get(name)
        return found if isinstance(found, dict) else {}

    def node_ports(self) -> Iterator[ServicePort]:
        """Our service ports that are NodePorts."""
        return (port for port in self.ours.ports.values() if is_node_port(port.key))


def finding(
    check: str,
    severity: Severity,
    title: str,
    why: str,
    remedy: str,
    objects: Sequence[str] = (),
    kep: str = "",
) -> Finding:
    return Finding(check, severity, title, why, remedy, tuple(objects[:MOST_OBJECTS]), len(objects), kep)
