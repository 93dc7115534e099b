"""Make the recordings in netlink/ anew: `python -m tests.fuzz.record`, as root. What this kernel says of a small cluster's
table and flows, of addresses, ipsets and iptables (with the commands ipset and iptables-legacy), in a network namespace."""

from __future__ import annotations

import contextlib
import lzma
import socket
import subprocess
from collections.abc import Callable
from typing import Any

from proxy import node_addresses
from proxy.agent import Agent
from proxy.conntrack_socket import FlowTable
from proxy.detect import interfaces, ipsets, iptables_legacy, nft_names
from proxy.detect.netlink import Netlink
from proxy.events import Inbox
from proxy.settings import Settings
from proxy.state import State
from rules.errors import TransactionError
from rules.kernel import Kernel
from rules.kernel_watch import KernelWatch
from rules.layout import LAYOUTS, TABLE_NAME
from rules.objects import Family
from rules.transaction import AddElement, DeleteElement
from tests.fuzz.corpus import NETLINK, SEPARATOR
from tests.fuzz.scene import NODE, events
from tests.netns import in_new_namespace


class Recorder:
    """A socket that keeps what it receives."""

    def __init__(self, real: socket.socket, kept: list[bytes]) -> None:
        self._real, self._kept = real, kept

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = self._real.recv(size, flags)
        self._kept.append(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def main() -> None:
    NETLINK.mkdir(exist_ok=True)
    in_new_namespace(record)


def record() -> None:
    run(
        "ip link set lo up",
        "ip link add dummy0 type bridge",
        "ip link set dummy0 up",
        "ip addr add fd00::1/64 dev dummy0",
    )
    run("ip addr add 10.1.0.1/24 dev dummy0", "ip addr add 10.1.0.2 peer 10.1.0.3/32 dev dummy0")
    run("ipset create KUBE-CLUSTER-IP hash:ip,port", "ipset create KUBE-6-LOOP-BACK hash:ip,port,ip family inet6")
    run("ipset add KUBE-CLUSTER-IP 10.96.0.1,tcp:80", "ipset create other hash:net")
    run(
        "iptables-legacy -t nat -N KUBE-SERVICES",
        "iptables-legacy -t nat -A PREROUTING -m comment --comment x -j KUBE-SERVICES",
    )
    run(
        "ip6tables-legacy -t nat -N KUBE-SERVICES",
        "ip6tables-legacy -t nat -A OUTPUT -p udp --dport 53 -j KUBE-SERVICES",
    )
    kernel = Kernel()
    agent = Agent(State(NODE), kernel, Inbox(), Settings())
    agent.handle(events())
    keep("nftables", lambda kept: wrapped(kernel, kept, lambda: kernel.dump(LAYOUTS[Family.IPV4].table, settled=True)))
    keep(
        "nftables-6", lambda kept: wrapped(kernel, kept, lambda: kernel.dump(LAYOUTS[Family.IPV6].table, settled=True))
    )
    keep("refusals", lambda kept: wrapped(kernel, kept, lambda: refused(kernel)))
    keep("notifications", notifications)
    keep("nft-names", lambda kept: netlink(kept, lambda: nft_names.gather(lambda *_: "there")))
    keep("conntrack", conntrack)
    keep("addresses", addresses)
    keep("interfaces", lambda kept: netlink(kept, lambda: (interfaces.indexes(["dummy0"]), interfaces.addresses())))
    keep("ipsets", lambda kept: netlink(kept, lambda: ipsets.gather(lambda *_: "there")))
    keep("iptables-legacy", lambda kept: legacy(kept, iptables_legacy.IPV4))
    keep("iptables-legacy-6", lambda kept: legacy(kept, iptables_legacy.IPV6))


def run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)


def keep(name: str, make: Callable[[list[bytes]], object]) -> None:
    kept: list[bytes] = []
    make(kept)
    (NETLINK / f"{name}.xz").write_bytes(lzma.compress(SEPARATOR.join(kept)))
    print(f"{name:20} {len(kept):4} datagrams {sum(map(len, kept)):8} bytes")


def wrapped(owner: Any, kept: list[bytes], action: Callable[[], object]) -> None:
    """Record what its socket receives during the action."""
    real = owner._socket
    owner._socket = Recorder(real, kept)
    action()
    owner._socket = real


def refused(kernel: Kernel) -> None:
    """A transaction with several faults."""
    layout = LAYOUTS[Family.IPV4]
    address = bytes((10, 96, 255, 255))
    with contextlib.suppress(TransactionError):
        kernel.commit(
            [
                AddElement(layout.cluster_ips, address),
                DeleteElement(layout.external_ips, address),
                DeleteElement(layout.hairpins, address * 2),
            ]
        )


def notifications(kept: list[bytes]) -> None:
    """What others do to our table by hand, as it is told."""
    watch = KernelWatch(0)

    def others() -> None:
        table = f"ip {TABLE_NAME}"
        run(
            f"nft add element {table} cluster-ips {{ 10.96.255.1 }}",
            f"nft delete element {table} cluster-ips {{ 10.96.255.1 }}",
        )
        run(f"nft add rule {table} services counter", f"nft flush chain {table} services", f"nft add chain {table} x")
        while watch.read(0.2):
            pass

    wrapped(watch, kept, others)
    watch.close()


def netlink(kept: list[bytes], action: Callable[[], object]) -> None:
    """Record what the detector's sockets receive."""
    original = Netlink.__init__

    def make(self: Netlink, protocol: int) -> None:
        original(self, protocol)
        self._socket = Recorder(self._socket, kept)  # type: ignore[assignment]

    Netlink.__init__ = make  # type: ignore[method-assign]
    try:
        action()
    finally:
        Netlink.__init__ = original  # type: ignore[method-assign]


def conntrack(kept: list[bytes]) -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as client:
            for port in (53, 5353, 10053):
                client.sendto(b"x", (address, port))
    with FlowTable() as flows:
        for of in Family:
            wrapped(flows, kept, lambda of=of: list(flows.flows(of)))  # type: ignore[misc]


def addresses(kept: list[bytes]) -> None:
    original = node_addresses._rtnetlink
    node_addresses._rtnetlink = lambda: Recorder(original(), kept)  # type: ignore[assignment, return-value]
    try:
        node_addresses.read_all()
    finally:
        node_addresses._rtnetlink = original


def legacy(kept: list[bytes], variant: iptables_legacy.Variant) -> None:
    with socket.socket(variant.family, socket.SOCK_DGRAM) as sock:
        kept.append(bytes(iptables_legacy.read_table(sock.fileno(), variant, "nat")[1]))


if __name__ == "__main__":
    main()
