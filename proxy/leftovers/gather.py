"""Looks for what kube-proxy has left in the calling thread's network namespace. Reads, changes nothing, loads no module."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from proxy.detect import interfaces, ipset_members, ipvs, ipvs_netlink, processes
from proxy.detect.ipset_members import Members
from proxy.detect.kernel_support import KernelFiles, could_be_there
from proxy.detect.processes import RunningProxy
from proxy.leftovers import legacy_socket, nft_reader
from proxy.leftovers.found import Found, Unread
from proxy.leftovers.plan import SYSCTLS
from proxy.migrate.ipvs_merge import of_kube_proxy

KUBELETS: Final = ("kubelet", "kubelite", "k3s", "rke2")
SYSCTL_ROOT: Final = Path("/proc/sys")
_NOT_THERE: Final = (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EINVAL, errno.EOPNOTSUPP)
T = TypeVar("T")


def look(running: Sequence[RunningProxy] | None = None) -> Found:
    """running: what processes.scan gave, if it has been called. Raises nothing: what cannot be read is in `unread`."""
    if running is None:
        running = processes.scan()
    files = KernelFiles()
    found = Found(kubelet=any(process.program in KUBELETS for process in running))
    if could_be_there(files.presence("nf_tables", "CONFIG_NF_TABLES")):
        found.tables, found.nft_tables = _tried(nft_reader.read, "nftables", found) or ([], [])
    found.tables += _tried(legacy_socket.read, "iptables-legacy", found) or []
    members: Members | None = Members()
    if could_be_there(files.presence("ip_set", "CONFIG_IP_SET")):
        members = _tried(ipset_members.read, "ipsets", found)
        found.sets = members.names if members else []
    _ipvs(found, members)
    found.sysctls = _sysctls(found)
    return found


def _tried(read: Callable[[], T], what: str, found: Found) -> T | None:
    """None: it could not be read, which is noted."""
    try:
        return read()
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number not in _NOT_THERE:
            cause = os.strerror(number) if number else str(error)
            found.unread.append(Unread(what, cause, is_permission=number in (errno.EPERM, errno.EACCES)))
        return None


def _ipvs(found: Found, members: Members | None) -> None:
    """kube-ipvs0 and the virtual servers. Without that interface and its ipset, IPVS is somebody else's."""
    named = [interfaces.KUBE_IPVS, ipvs.KUBE_ROUTER]
    index = _tried(lambda: interfaces.indexes(named), "interfaces", found) or {}
    virtual = set(members.addresses) if members else set()
    if interfaces.KUBE_IPVS not in index and not virtual:
        return
    addresses = _tried(interfaces.addresses, "addresses", found) or {}
    if interfaces.KUBE_IPVS in index:
        own = addresses.pop(index[interfaces.KUBE_IPVS], set())
        found.interface = len(own)
        virtual |= own
    addresses.pop(index.get(ipvs.KUBE_ROUTER, 0), None)
    if ipvs.is_loaded():
        node = set().union(*addresses.values())
        servers = _tried(ipvs_netlink.read_table, "IPVS virtual servers", found) or []
        found.servers = [server for server in servers if of_kube_proxy(server, virtual, node, members)]
        found.other_servers = len(servers) - len(found.servers)


def _sysctls(found: Found) -> dict[str, str]:
    """Those that are as kube-proxy sets them, where there is something of it."""
    has_ipvs = found.interface is not None
    if not (has_ipvs or found.tables or found.nft_tables):
        return {}
    values: dict[str, str] = {}
    for name in SYSCTLS:
        is_arp = "/arp_" in name
        with suppress(OSError):
            value = (SYSCTL_ROOT / name).read_text().strip()
            if value != "0" and (has_ipvs or not is_arp):
                values[name] = value
    return values
