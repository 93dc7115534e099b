"""IPVS virtual servers in this network namespace's kernel."""

from __future__ import annotations

import os
from typing import Final

from proxy.detect import interfaces, ipvs_netlink, ipvs_servers
from proxy.detect.evidence import Evidence, Place
from proxy.detect.ipvs_servers import VirtualServer
from proxy.detect.unreadable import because

MODULE: Final = "/sys/module/ip_vs"
PROC: Final = "/proc/thread-self/net/ip_vs"
KUBE_ROUTER: Final = "kube-dummy-if"
"""Where kube-router, which uses IPVS too, has its virtual servers' addresses."""


def gather() -> list[Evidence]:
    """Asked over netlink, or read from /proc where that does not work. Loads no module."""
    if not is_loaded():
        return []
    place = Place("ipvs", "netlink")
    try:
        try:
            servers = ipvs_netlink.read()
        except (OSError, ValueError) as refused:
            try:
                servers = read_proc()
            except (OSError, ValueError):
                raise refused from None
            place = Place("ipvs", "/proc/net/ip_vs")
        return [ipvs_servers.summary(servers, place, kube_addresses())] if servers else []
    except (OSError, ValueError) as error:
        return [because(place, error)]


def is_loaded() -> bool:
    """Whether this kernel has IPVS now."""
    return os.path.exists(PROC) or os.path.exists(MODULE)


def read_proc() -> list[VirtualServer]:
    """Raises OSError, ValueError."""
    with open(PROC, errors="replace") as lines:
        return ipvs_servers.parse(lines)


def kube_addresses() -> set[bytes]:
    """Where kube-proxy has its virtual servers: the addresses of kube-ipvs0 and, for NodePorts, of the node. Without
    kube-ipvs0 none: an address of the node may be a load balancer's (keepalived). Raises OSError, ValueError."""
    index = interfaces.indexes([interfaces.KUBE_IPVS, KUBE_ROUTER])
    if interfaces.KUBE_IPVS not in index:
        return set()
    found = interfaces.addresses()
    found.pop(index.get(KUBE_ROUTER, 0), None)
    return set().union(*found.values())
