"""What kube-proxy in IPVS mode does on this node: IPVS's virtual servers and the ipsets that go with them, as entries."""

from __future__ import annotations

from typing import Final

from proxy.detect import interfaces, ipset_members, ipvs, ipvs_netlink
from proxy.detect.ipset_members import Members
from proxy.detect.ipvs_table import UNKNOWN_TIME, Server, parse_proc, parse_saved
from proxy.detect.kernel_support import KernelFiles, could_be_there
from proxy.detect.unreadable import PERMISSION
from proxy.migrate.entries import Dataplane
from proxy.migrate.ipvs_merge import dataplane, is_stray, of_kube_proxy
from proxy.unread import Unread
from rules.elements import address_of

NETLINK, PROC = "netlink", "/proc/net/ip_vs"
VIRTUAL: Final = ("CLUSTER-IP", "LOAD-BALANCER", "LOAD-BALANCER-LOCAL", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL")
"""Sets of what is at addresses of kube-ipvs0."""


def read() -> Dataplane | None:
    """Of the calling thread's network namespace; None: no IPVS of kube-proxy's is there. Loads no kernel module, and
    needs CAP_NET_ADMIN for all of it; what could not be read is in `unread`. Raises nothing."""
    if not ipvs.is_loaded():
        return None
    unread: list[Unread] = []
    try:
        index = interfaces.indexes([interfaces.KUBE_IPVS, ipvs.KUBE_ROUTER])
        found = interfaces.addresses()
    except (OSError, ValueError) as error:
        return Dataplane("ipvs", (), unread=(Unread("addresses of kube-ipvs0", str(error)),))
    if interfaces.KUBE_IPVS not in index:
        return None
    virtual = found.pop(index[interfaces.KUBE_IPVS], set())
    found.pop(index.get(ipvs.KUBE_ROUTER, 0), None)
    node = set().union(*found.values())
    members = _members(unread)
    try:
        servers, source = _servers()
    except (OSError, ValueError) as error:
        return Dataplane("ipvs", (), unread=(Unread("IPVS virtual servers", str(error), PERMISSION),))
    strays = [server for server in servers if is_stray(server, virtual, node)]
    servers = [server for server in servers if of_kube_proxy(server, virtual, node, members)]
    if any(server.persistence == UNKNOWN_TIME for server in servers):
        cause = f"{PROC} tells it in ticks of this kernel's clock, whose length is not known"
        unread.append(Unread("session affinity of IPVS virtual servers", cause, PERMISSION))
    return dataplane(servers, members, virtual, source, tuple(unread), strays)


def of_text(ipvsadm: str, ipset: str) -> Dataplane | None:
    """The same of what `ipvsadm -Sn` and `ipset save` have printed; None: neither has anything of kube-proxy's. Raises
    ValueError."""
    members = ipset_members.parse_saved(ipset)
    servers = [server for server in parse_saved(ipvsadm) if server.address]
    if not servers or not members.names:
        return None
    virtual = members.addresses | {address_of(key) for name in VIRTUAL for key in members.keys[name]}
    node = {server.address for server in servers} - virtual
    servers = [server for server in servers if of_kube_proxy(server, virtual, node, members)]
    return dataplane(servers, members, virtual, "ipvsadm")


def _servers() -> tuple[list[Server], str]:
    """Over netlink, or from /proc. Raises OSError, ValueError."""
    try:
        return ipvs_netlink.read_table(), NETLINK
    except (OSError, ValueError) as refused:
        try:
            with open(ipvs.PROC, errors="replace") as lines:
                return parse_proc(lines, KernelFiles().ticks), PROC
        except (OSError, ValueError):
            raise refused from None


def _members(unread: list[Unread]) -> Members | None:
    """None: they cannot be read."""
    if not could_be_there(KernelFiles().presence("ip_set", "CONFIG_IP_SET")):
        return Members()
    try:
        return ipset_members.read()
    except (OSError, ValueError) as error:
        cause = "no permission" if isinstance(error, PermissionError) else str(error)
        what = "ipsets KUBE-* (who may use a load balancer, what is masqueraded, which ports are NodePorts)"
        unread.append(Unread(what, cause, PERMISSION))
        return None
