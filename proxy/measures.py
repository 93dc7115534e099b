"""What the agent and its helpers count while they work, for whoever shows it. Any thread may read.

Nothing here knows how it is shown: see proxy.metrics_table. To count costs less than a microsecond.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from rules.elements import ServicePort, is_node_port
from rules.objects import Family

if TYPE_CHECKING:
    from proxy.state import State

IP_FAMILIES: Final = {Family.IPV4: "IPv4", Family.IPV6: "IPv6"}
"""As kube-proxy calls them."""

SYNC_BOUNDS: Final = tuple(0.001 * 2**i for i in range(15))
"""kube-proxy's, for all that has to do with a sync."""
NETWORK_BOUNDS: Final = (
    *(0.0, 0.25, 0.5),
    *(float(seconds) for seconds in range(1, 60)),
    *(float(seconds) for seconds in range(60, 120, 5)),
    *(float(seconds) for seconds in range(120, 301, 30)),
)
"""kube-proxy's, for network programming; the one of 0 is there, too."""
COMMIT_BOUNDS: Final = tuple(0.0001 * 2**i for i in range(16))
"""Ours: most of what we do is done before kube-proxy's first bound."""
REQUEST_BOUNDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""client-go's, for requests to an API server."""

Labels = tuple[str, ...]


class Histogram:
    """How many values were up to each of `bounds`, which are in order, and what all are together."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        with self._lock:
            self._counts[bisect_left(self.bounds, value)] += 1
            self._sum += value

    def read(self) -> tuple[list[int], float]:
        """For each bound, and at last for infinity, how many values were not above it; and the sum."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        return list(accumulate(counts)), total


class Histograms:
    """One for each combination of labels that was seen."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._found: dict[Labels, Histogram] = {}

    def observe(self, labels: Labels, value: float) -> None:
        found = self._found.get(labels)
        if found is None:
            found = self._found.setdefault(labels, Histogram(self._bounds))
        found.observe(value)

    def read(self) -> dict[Labels, Histogram]:
        return dict(self._found)


class Counts:
    """Numbers that only grow, by labels. first: those that are there from the beginning."""

    def __init__(self, first: Iterable[Labels] = ()) -> None:
        self._counts: dict[Labels, int] = dict.fromkeys(first, 0)
        self._lock = threading.Lock()

    def add(self, labels: Labels, more: int = 1) -> None:
        with self._lock:
            self._counts[labels] = self._counts.get(labels, 0) + more

    def read(self) -> dict[Labels, int]:
        with self._lock:
            return dict(self._counts)


class Requests:
    """To API servers. counts: by (code, host, method). seconds: by (host, verb), of all but watches, which take as long
    as they are let."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.seconds = Histograms(REQUEST_BOUNDS)

    def made(self, host: str, method: str, code: str, seconds: float, *, is_watch: bool) -> None:
        """code: "<error>" when there was no answer, as client-go says."""
        self.counts.add((code, host, method))
        if not is_watch:
            self.seconds.observe((host, method), seconds)


class Reconciles:
    """Of conntrack's entries with what is programmed. By (IP family,)."""

    def __init__(self) -> None:
        self.seconds = Histograms(SYNC_BOUNDS)
        self.deleted = Counts((name,) for name in IP_FAMILIES.values())

    def done(self, seconds: float, deleted: Mapping[Family, int]) -> None:
        for family, count in deleted.items():
            self.seconds.observe((IP_FAMILIES[family],), seconds)
            self.deleted.add((IP_FAMILIES[family],), count)


class Syncs:
    """What the agent's loop tells of itself. now: seconds since 1970.

    queued_at, synced_at: when; 0: never. all, full, partial: how long they took; a full one is of everything. commits: the
    same with finer bounds, of those that had something to change. network: from a change in the cluster to its commit, by
    IP family. adopted: of each table that was taken over at the last full sync, how many elements stayed as they were.
    programmed_services, programmed_slices: how many changes (proxy.state.State) are in the kernel.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._since = now()
        self.queued_at = self.synced_at = 0.0
        self.all, self.full, self.partial = Histogram(SYNC_BOUNDS), Histogram(SYNC_BOUNDS), Histogram(SYNC_BOUNDS)
        self.commits = Histogram(COMMIT_BOUNDS)
        self.operations = self.bytes = 0
        self.network = {family: Histogram(NETWORK_BOUNDS) for family in Family}
        self.adopted: dict[str, int] = {}
        self.differences: dict[str, int] = {}
        self.programmed_services = self.programmed_slices = 0

    def queued(self) -> None:
        """There is something to do, or to look at."""
        self.queued_at = self._now()

    def committed(self, seconds: float, operations: int, size: int) -> None:
        """A transaction was acknowledged."""
        if operations:
            self.commits.observe(seconds)
            self.operations += operations
            self.bytes += size

    def took_over(self, differences: Mapping[str, int], elements: Mapping[str, int]) -> None:
        """By IP family, as the kernel's users call it ("ip", "ip6"): how much of a table that was there was not as it
        should be, and how many elements it has now."""
        self.differences = dict(differences)
        self.adopted = {name: max(0, elements.get(name, 0) - count) for name, count in differences.items()}

    def synced(self, state: State, seconds: float, *, full: bool) -> None:
        """All that the state knows is programmed. Empties its `triggers`."""
        self.all.observe(seconds)
        (self.full if full else self.partial).observe(seconds)
        self.programmed_services, self.programmed_slices = state.service_changes, state.slice_changes
        self.synced_at = now = self._now()
        for family, at in state.triggers:
            # What is older than this process says nothing of it, and what lies in the future is of another clock.
            if self._since <= at <= now:
                self.network[family].observe(now - at)
        state.triggers.clear()


class LocalPolicies:
    """A proxy.committed.Follower. Keeps count of service ports and of those that drop what comes, because their policy is Local
    and no endpoint is here, though there are some elsewhere: all addresses of a service port count once."""

    def __init__(self) -> None:
        self._names: dict[bytes, tuple[Family, str, str]] = {}
        self._keys: Counter[tuple[Family, str, str]] = Counter()
        self.without: Counter[tuple[Family, str]] = Counter()
        """By family and policy: "internal", "external"."""

    def update(self, ports: Mapping[bytes, ServicePort | None], *, everything: bool) -> None:
        """ports: those that may have changed, None: gone. everything: they are all there are."""
        if everything:
            for key in self._names.keys() - ports.keys():
                self._forget(key)
        for key, port in ports.items():
            self._forget(key)
            if port is not None and port.drop:
                policy = "external" if port.external or is_node_port(key) else "internal"
                # One of another protocol is another service port, whose name is another, too.
                self._names[key] = name = (port.family, policy, port.name)
                self._keys[name] += 1
                if self._keys[name] == 1:
                    self.without[name[:2]] += 1

    def _forget(self, key: bytes) -> None:
        name = self._names.pop(key, None)
        if name is not None:
            self._keys[name] -= 1
            if not self._keys[name]:
                del self._keys[name]
                self.without[name[:2]] -= 1

    def read(self, families: Collection[Family]) -> dict[Labels, int]:
        """By (IP family, traffic policy)."""
        policies = ("external", "internal")
        return {(IP_FAMILIES[f], policy): self.without[f, policy] for f in sorted(families) for policy in policies}


class Measures:
    """All that is counted on a node. probes: of our own health, by (path, code)."""

    def __init__(self) -> None:
        self.syncs = Syncs()
        self.local_policies = LocalPolicies()
        self.reconciles = Reconciles()
        self.probes = Counts()
