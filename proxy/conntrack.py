"""UDP flows that lead where they should not any more are forgotten: their next packet is led anew.

An agent's follower. It looks into the kernel's table once after everything has been programmed, and then at the
service ports that changed, in a thread of its own.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import structlog
from msgspec import Struct

from proxy.committed import Committed
from proxy.conntrack_socket import UDP, Flow, FlowTable
from proxy.measures import Reconciles
from proxy.udp import NO_FLOWS, UdpChange, UdpFlows
from rules.elements import address_of, family_of, is_node_port
from rules.objects import Family

LOG = structlog.get_logger()
QUERIES_AT_MOST: Final = 16
"""For each one the kernel walks its whole table. Reading all flows at once costs as much as 2 of them in a table of
1,000 flows, as 40 in one of 100,000."""

RETRY_SECONDS: Final = 5.0
NodePortIps = Mapping[Family, Collection[bytes]]
"""Packed addresses on which NodePorts answer."""

_PROTOCOL: Final = bytes((UDP, 0, 0, 0))


class Stale(Struct, frozen=True):
    """Which flows are to be forgotten. Pure.

    changes: by key. everything: flows are held against all service ports, too, not only against what changed.
    programmed: of all UDP service ports, as they are now.
    """

    changes: Mapping[bytes, UdpChange]
    everything: bool
    programmed: Mapping[bytes, UdpFlows]
    nodeport_ips: NodePortIps

    def __contains__(self, flow: Flow) -> bool:
        address, port = flow.to[:-4], flow.to[-4:]
        key = address + _PROTOCOL + port
        if key not in self.programmed and key not in self.changes:
            key = bytes((flow.family,)) + _PROTOCOL + port
        change = self.changes.get(key)
        known = self.programmed.get(key, NO_FLOWS)
        if flow.leads_to in known.serving:
            return False
        if change and flow.leads_to in change.gone:
            return True
        # What goes from here to a NodePort of another machine, or past us, is not ours.
        if is_node_port(key) and address not in self.nodeport_ips[flow.family]:
            return False
        if flow.is_natted:
            return self.everything and key in self.programmed
        return known.usable and (self.everything or (change is not None and change.usable))


class Conntrack:
    """A proxy.committed.Follower with a thread of its own, which works in the network namespace that the maker is in.

    `programmed` keeps the mapping that it is given and looks single keys up in it later on: flows are judged by what is
    programmed then, not when they began to wait. reconciles: counts what was done.
    """

    def __init__(self, reconciles: Reconciles | None = None) -> None:
        self._reconciles = reconciles or Reconciles()
        self._programmed: Mapping[bytes, UdpFlows] = {}
        self._addresses: NodePortIps = dict.fromkeys(Family, ())
        self._news = threading.Condition()
        self._changes: dict[bytes, UdpChange] = {}
        self._everything = False
        self._stopped = False
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="conntrack", daemon=True)
        self._thread.start()

    def __call__(self, done: Committed) -> None:
        if done.everything:
            self.programmed(done.flows, done.nodeport_ips)
        else:
            self.committed(done.udp, done.nodeport_ips)

    def programmed(self, flows: Mapping[bytes, UdpFlows], addresses: NodePortIps) -> None:
        """Everything has been programmed anew; these are all UDP service ports."""
        with self._news:
            self._programmed = flows
            self._addresses = addresses
            self._everything = True
            self._news.notify()

    def committed(self, changes: Sequence[UdpChange], addresses: NodePortIps) -> None:
        """A change has been committed."""
        more = addresses is not self._addresses and any(
            not set(addresses[family]) <= set(self._addresses[family]) for family in Family
        )
        self._addresses = addresses
        if not changes and not more:
            return
        with self._news:
            # Flows to an address that has NodePorts only now have been let through as they were.
            self._everything |= more
            merge(self._changes, changes)
            self._news.notify()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread, after what waits has been done; wait for that at most `timeout` seconds."""
        with self._news:
            self._stopped = True
            self._news.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._changes or self._everything or self._stopped)
                changes, self._changes = self._changes, {}
                everything, self._everything = self._everything, False
                programmed = self._programmed
                last = self._stopped
            if changes or everything:
                try:
                    self._work(Stale(changes, everything, programmed, self._addresses))
                    self._failure = ""
                except Exception as error:  # whatever it was, the next change deserves another try
                    self._report(error)
                    self._put_back(changes, everything)
            if last:
                return

    def _work(self, stale: Stale) -> None:
        started = time.perf_counter()
        with FlowTable() as table:
            found = [flow for flow in _look(table, stale) if flow in stale]
            deleted = {family: table.forget([flow for flow in found if flow.family is family]) for family in Family}
        forgotten = sum(deleted.values())
        seconds = time.perf_counter() - started
        self._reconciles.done(seconds, deleted)
        milliseconds = round(seconds * 1e3, 3)
        if stale.everything:
            LOG.info("udp_flows_compared", forgotten=forgotten, milliseconds=milliseconds)
        else:
            ports = len(stale.changes)
            LOG.debug("udp_flows_forgotten", service_ports=ports, forgotten=forgotten, milliseconds=milliseconds)

    def _put_back(self, changes: Mapping[bytes, UdpChange], everything: bool) -> None:
        """To be done again, with what has come meanwhile, after a while."""
        with self._news:
            merge(self._changes, changes.values())
            self._everything |= everything
            self._news.wait_for(lambda: self._stopped, RETRY_SECONDS)

    def _report(self, error: Exception) -> None:
        failure = f"{type(error).__name__}: {error}"
        if failure != self._failure:  # not again with each try
            remedy = remedy_for(error)
            LOG.error("udp_flows_not_forgotten", error=failure, remedy=remedy, then=f"retry every {RETRY_SECONDS:g} s")
        self._failure = failure


def merge(waiting: dict[bytes, UdpChange], changes: Iterable[UdpChange]) -> None:
    """Add changes to those that wait, one for each key."""
    for change in changes:
        other = waiting.get(change.key)
        if other:
            change = UdpChange(change.key, change.gone | other.gone, change.usable or other.usable)
        waiting[change.key] = change


def remedy_for(error: Exception) -> str:
    """What a user can do."""
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.EPERM, errno.EACCES):
        return "run as root, or with the capability CAP_NET_ADMIN"
    if code in (errno.EINVAL, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT):
        return "load the module nf_conntrack_netlink, or use a kernel with CONFIG_NF_CT_NETLINK, 5.8 or newer"
    return "please report this, with the kernel's version; until then, clients that never stop sending need a restart"


def _look(table: FlowTable, stale: Stale) -> Iterator[Flow]:
    """All flows that may be stale."""
    for family in Family:
        keys = [key for key in stale.changes if family_of(key) is family]
        if stale.everything or len(keys) > QUERIES_AT_MOST:
            yield from table.flows(family)
        else:
            for key in keys:
                yield from table.flows(family, address_of(key), key[-4:])
