"""The bed with one more node, whose pod sends through the first one: no pod there is anybody's endpoint.

node2 192.168.79.4 --- 192.168.79.2 eth2 node0
  |
pod-5 10.244.2.2, fd44:2::2
"""

from __future__ import annotations

from typing import Final

from integration.namespaces import Namespace
from integration.topology import Bed, Host

PORT: Final = "eth2"


class BedWithThirdNode(Bed):
    """A pod of the second node cannot stand for a remote sender: to the other pod there it would be a neighbour, whose
    answers never pass the first node."""

    def __init__(self) -> None:
        super().__init__()
        self._node2 = Namespace(self.client.namespace.name.removesuffix("client") + "node2")
        self.pod5 = Host("pod-5", self._node2, "10.244.2.2", "fd44:2::2")
        self.namespaces = (*self.namespaces, self._node2)  # type: ignore[assignment]

    def _up(self) -> None:
        super()._up()
        node = self.node.namespace
        # The limit on ICMP errors of all destinations together, too, would turn refusals into silence.
        node.sysctl(ipv4__icmp_ratemask=0, ipv6__icmp__ratemask=127)
        self._node2.ip([f"link add e0 type veth peer name {PORT} netns {node.name}", "link set e0 up"])
        node.ip(
            [
                f"link set {PORT} up",
                f"addr add 192.168.79.2/24 dev {PORT}",
                f"addr add fd79::2/64 dev {PORT} nodad",
                "route add 10.244.2.0/24 via 192.168.79.4",
                "route add fd44:2::/64 via fd79::4",
            ]
        )
        self._node2.ip(
            [
                "addr add 192.168.79.4/24 dev e0",
                "addr add fd79::4/64 dev e0 nodad",
                f"addr add {self.pod5.ipv4}/32 dev lo",
                f"addr add {self.pod5.ipv6}/128 dev lo nodad",
                "route add default via 192.168.79.2",
                "route add default via fd79::2",
            ]
        )

    def prohibit(self, *networks: str) -> None:
        """Make it heard when no rule takes care of a packet to these: the second node answers that it is prohibited.

        Without, nobody answers, and what is let through looks like what is dropped.
        """
        second = self.pod3.namespace
        second.sysctl(ipv4__ip_forward=1, ipv6__conf__all__forwarding=1)
        second.sysctl(ipv4__icmp_ratemask=0, ipv6__icmp__ratemask=127)
        second.ip(f"route add prohibit {network}" for network in networks)
        for network in networks:
            way = f"fd78::3 src {self.node.ipv6}" if ":" in network else f"192.168.78.3 src {self.node.ipv4}"
            self.node.namespace.ip([f"route add {network} via {way}"])
