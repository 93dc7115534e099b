"""Removes what a plan says. The order: rules first, then what they use and what is behind them.

    nftables, with iptables-nft: all in one transaction, or if that is refused, each table in one
    iptables-legacy: each table in one step
    IPVS's virtual servers    kube-ipvs0    ipsets (last: they tell which virtual servers are NodePorts)

What cannot be removed is told, and the rest goes on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from msgspec import Struct

from proxy.detect import interfaces, ipset_members, ipvs_netlink
from proxy.detect.netlink import NETLINK_ROUTE, Netlink
from proxy.leftovers import legacy_socket, nft_batch
from proxy.leftovers.plan import Plan
from rules.elements import describe_key, service_key


class Failed(Struct, frozen=True, rename="camel"):
    """Something that could not be removed, and why."""

    what: str
    cause: str
    is_permission: bool = False
    has_changed: bool = False
    """It was another one by then: look again."""


def remove(plan: Plan) -> list[Failed]:
    return [*rules(plan), *ipvs(plan), *sets(plan)]


def rules(plan: Plan) -> list[Failed]:
    """Of nftables and iptables."""
    failed: list[Failed] = []
    in_nftables = [table for table in plan.tables if table.table.variant == "nft"]
    try:
        nft_batch.commit(in_nftables, plan.nft_tables)
    except (OSError, ValueError):  # then what can go, table by table
        for table in in_nftables:
            _tried(table.table.place, lambda table=table: nft_batch.commit([table], ()), failed)  # type: ignore[misc]
        _tried("nftables tables kube-proxy", lambda: nft_batch.commit((), plan.nft_tables), failed)
    for table in plan.tables:
        if table.table.variant == "legacy":
            _tried(table.table.place, lambda table=table: legacy_socket.remove(table), failed)  # type: ignore[misc]
    return failed


def ipvs(plan: Plan) -> list[Failed]:
    """Virtual servers, and then the interface with their addresses.

    With the servers, the kernel forgets their connections, also in conntrack, because kube-proxy has set
    expire_nodest_conn (Linux 5.9): UDP goes on with our rules, and TCP is told at once.
    """
    failed: list[Failed] = []
    if plan.servers:

        def servers() -> None:
            for server, error in ipvs_netlink.remove(plan.servers):
                key = describe_key(service_key(server.address, server.protocol, server.port))
                failed.append(_failed(f"IPVS virtual server {key}", error))

        _tried("IPVS virtual servers", servers, failed)
    if plan.interface is not None:
        _tried(interfaces.KUBE_IPVS, _interface, failed)
    return failed


def sets(plan: Plan) -> list[Failed]:
    failed: list[Failed] = []
    if plan.sets:

        def all_of_them() -> None:
            for name, error in ipset_members.remove(plan.sets):
                failed.append(_failed(f"ipset {name}", error))

        _tried("ipsets", all_of_them, failed)
    return failed


def _interface() -> None:
    index = interfaces.indexes([interfaces.KUBE_IPVS]).get(interfaces.KUBE_IPVS)
    if index is not None:
        with Netlink(NETLINK_ROUTE) as netlink:
            netlink.do(interfaces.RTM_DELLINK, interfaces.by_index(index))


def _tried(what: str, action: Callable[[], object], failed: list[Failed]) -> None:
    try:
        action()
    except (OSError, ValueError) as error:
        failed.append(_failed(what, error))


def _failed(what: str, error: OSError | ValueError) -> Failed:
    number = error.errno if isinstance(error, OSError) else None
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if number == errno.EBUSY and what.startswith("ipset"):
        cause = "a rule uses it"
    return Failed(
        what,
        cause or os.strerror(number or errno.EIO),
        is_permission=number in (errno.EPERM, errno.EACCES),
        has_changed=number in (errno.EAGAIN, errno.ENOENT) or (number == errno.EBUSY and "nft" in what),
    )
