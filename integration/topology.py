"""The bed: a node with two pods, a second node with two more, and a client outside. IPv4 and IPv6.

    client 192.168.77.1 --- 192.168.77.2  node0  192.168.78.2 --- 192.168.78.3  node1
                                          cni0 10.244.0.1                         |
                                         /              \\                  pod-3 10.244.1.2
                               pod-1 10.244.0.2   pod-2 10.244.0.3          pod-4 10.244.1.3

IPv6 mirrors it: fd77::/64, fd78::/64, fd44::/64 for local pods, fd44:1::/64 for remote ones.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from integration import namespaces
from integration.agent import Agent
from integration.interrupts import Interrupts
from integration.namespaces import Namespace
from integration.servers import EchoServers

CHECKOUT: Final = Path(__file__).parent.parent
_numbers: Final = itertools.count(1)


@dataclass(frozen=True)
class Host:
    """Somewhere that packets come from and go to. Several pods may share a namespace, each with its own addresses."""

    name: str
    namespace: Namespace
    ipv4: str
    ipv6: str
    picks_source: bool = False  # the kernel chooses the source address, as it does for programs on a node

    def address(self, family: int) -> str:
        """Its address in IP family 4 or 6."""
        return self.ipv6 if family == 6 else self.ipv4


class Bed:
    """A context manager: the hosts exist, and their echo servers answer, inside the `with` block.

    Whatever ends the block (an exception, SIGINT, SIGTERM, SIGHUP), processes and namespaces are removed. What a run
    left behind that was killed outright is removed when the next one starts. Needs `privileges.acquire()` before.
    """

    def __init__(self) -> None:
        prefix = f"{namespaces.PREFIX}{os.getpid()}-{next(_numbers)}-"
        client, node, node1, pod1, pod2 = (
            Namespace(prefix + name) for name in ("client", "node0", "node1", "pod-1", "pod-2")
        )
        self.client = Host("client", client, "192.168.77.1", "fd77::1")
        self.client2 = Host("client2", client, "192.168.77.9", "fd77::9")  # another address of the same machine
        self.node = Host("node0", node, "192.168.77.2", "fd77::2", picks_source=True)
        self.pod1 = Host("pod-1", pod1, "10.244.0.2", "fd44::2")
        self.pod2 = Host("pod-2", pod2, "10.244.0.3", "fd44::3")
        self.pod3 = Host("pod-3", node1, "10.244.1.2", "fd44:1::2")
        self.pod4 = Host("pod-4", node1, "10.244.1.3", "fd44:1::3")
        self.pods = (self.pod1, self.pod2, self.pod3, self.pod4)
        self.namespaces = (client, node, node1, pod1, pod2)
        self.servers = EchoServers()
        self._node1 = node1
        self._agents: list[Agent] = []
        self._interrupts = Interrupts()

    def __enter__(self) -> Self:
        namespaces.require("ip", "setpriv")
        atexit.register(self._down)  # for an interrupt just before or after the `with` block takes over
        self._interrupts.install()
        try:
            namespaces.remove_leftovers()
            self._up()
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._down()
        except KeyboardInterrupt:  # the first and last one: see Interrupts
            self._down()
            raise

    def agent(self, config: Path, manifests: Path, *options: str) -> Agent:
        """Start kube-proxy-nft on the node, with its objects from `manifests`. It is stopped with the bed.

        It logs "programmed" when the first rules are in the kernel, and, with `--log-level debug` among the options,
        "committed" for every change.
        """
        files = ["--config", str(config), "--manifests", str(manifests)]
        argv = [sys.executable, "-m", "proxy", "run", *files, *options]
        agent = Agent(self.node.namespace, argv, CHECKOUT)
        self._agents.append(agent)
        return agent

    def _up(self) -> None:
        namespaces.create(self.namespaces)
        for each in self.namespaces:
            # Duplicate address detection would keep IPv6 addresses unusable for a second, and limits on ICMP errors
            # would turn refusals into silence.
            each.sysctl(ipv6__conf__all__accept_dad=0, ipv6__conf__default__accept_dad=0)
            each.sysctl(ipv4__icmp_ratelimit=0, ipv6__icmp__ratelimit=0)
            # Where the kernel has no br_netfilter, the node tells local pods of a shorter way to each other, past its NAT.
            each.sysctl(ipv6__conf__all__accept_redirects=0, ipv6__conf__default__accept_redirects=0)
        node, ends = self.node.namespace, self._ends()
        for end in ends:
            end.namespace.ip([f"link add e0 type veth peer name {end.port} netns {node.name}", "link set e0 up"])
        node.ip(self._node_commands())
        for end in ends:
            end.namespace.ip(end.commands())
        node.sysctl(ipv4__ip_forward=1, ipv6__conf__all__forwarding=1)
        # Local pods talk to each other through their gateway; it need not tell them of a shorter way.
        node.sysctl(ipv4__conf__all__send_redirects=0, ipv4__conf__cni0__send_redirects=0)
        for host in (*self.pods, self.node):
            self.servers.serve(host.namespace, host.ipv4, host.ipv6)
        self.servers.start()

    def _down(self) -> None:
        for agent in self._agents:
            agent.stop()
        for each in self.namespaces:
            each.end()
        self.servers.stop()
        namespaces.delete(n.name for n in self.namespaces)
        self._interrupts.restore()
        atexit.unregister(self._down)

    def _ends(self) -> list[_End]:
        """Every namespace but the node's, with its one cable to the node."""
        pod1, pod2, pod3, pod4 = self.pods
        clients = [
            *(c.ipv4 + "/24" for c in (self.client, self.client2)),
            *(c.ipv6 + "/64" for c in (self.client, self.client2)),
        ]
        return [
            _End(self.client.namespace, "eth0", clients, "192.168.77.2", "fd77::2"),
            _End(self._node1, "eth1", ["192.168.78.3/24", "fd78::3/64"], "192.168.78.2", "fd78::2", (pod3, pod4)),
            _End(pod1.namespace, "veth1", [pod1.ipv4 + "/32", pod1.ipv6 + "/128"], "10.244.0.1", "fd44::1"),
            _End(pod2.namespace, "veth2", [pod2.ipv4 + "/32", pod2.ipv6 + "/128"], "10.244.0.1", "fd44::1"),
        ]

    def _node_commands(self) -> Iterator[str]:
        yield "link add cni0 type bridge forward_delay 0 mcast_snooping 0"
        yield "link set cni0 up"
        for port in ("veth1", "veth2"):
            yield f"link set {port} master cni0"
            yield f"link set {port} type bridge_slave hairpin on"  # a pod may reach itself through a Service
        for port in ("eth0", "eth1", "veth1", "veth2"):
            yield f"link set {port} up"
        for address, port in (
            (self.node.ipv4 + "/24", "eth0"),
            (self.node.ipv6 + "/64", "eth0"),
            ("192.168.78.2/24", "eth1"),
            ("fd78::2/64", "eth1"),
            ("10.244.0.1/24", "cni0"),
            ("fd44::1/64", "cni0"),
        ):
            yield f"addr add {address} dev {port} {'nodad' if ':' in address else ''}"
        yield "route add 10.244.1.0/24 via 192.168.78.3"
        yield "route add fd44:1::/64 via fd78::3"
        # A default route, so that the addresses of Services are routable from the node itself.
        yield f"route add default via {self.client.ipv4}"
        yield f"route add default via {self.client.ipv6}"


@dataclass(frozen=True)
class _End:
    """The far end of a cable to the node: interface e0 here, `port` there."""

    namespace: Namespace
    port: str
    addresses: list[str]
    gateway4: str
    gateway6: str
    pods: tuple[Host, ...] = ()

    def commands(self) -> Iterator[str]:
        for address in self.addresses:
            yield f"addr add {address} dev e0 {'nodad' if ':' in address else ''}"
        for pod in self.pods:
            yield f"addr add {pod.ipv4}/32 dev lo"
            yield f"addr add {pod.ipv6}/128 dev lo nodad"
        # Pods own nothing but their address: all they send goes to the gateway, as with many network plugins. So
        # answers between pods of one node pass its IP layer, also where the kernel lacks br_netfilter.
        for gateway in (self.gateway4, self.gateway6):
            yield f"route replace {gateway} dev e0"
            yield f"route add default via {gateway} dev e0"
