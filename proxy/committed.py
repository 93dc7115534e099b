"""What the agent tells of a commit, and to whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from proxy.health_checks import HealthCheck
from proxy.nodes import NodeInfo
from proxy.services import Name
from proxy.udp import UdpChange, UdpFlows
from rules.elements import ServicePort
from rules.objects import Family


class Committed(Struct, frozen=True):
    """What the kernel holds since a commit, for those who do the rest.

    everything: all has been programmed anew, and `ports` are all there are; else those that may have changed, None:
    gone. udp: what the change means for UDP flows. flows: of all UDP service ports; not to be changed.
    health_checks: those that may have changed. nodeport_ips: where NodePorts answer. node: see State.node.
    """

    everything: bool
    ports: Mapping[bytes, ServicePort | None]
    udp: Sequence[UdpChange]
    flows: Mapping[bytes, UdpFlows]
    health_checks: Mapping[Name, HealthCheck | None]
    nodeport_ips: Mapping[Family, frozenset[bytes]]
    node: NodeInfo | None


Follower = Callable[[Committed], None]
"""Acts on what has been programmed, beside nftables. Must not block and not raise."""
