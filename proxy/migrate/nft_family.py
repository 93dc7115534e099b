"""One of kube-proxy's nftables tables -> entries. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Set

from msgspec import Struct
from msgspec.structs import replace

from proxy.migrate.entries import Entry, Refusal
from proxy.migrate.nft_base import (
    FIREWALL,
    NO_ENDPOINTS,
    NO_NODE_PORTS,
    NODE_PORTS,
    SERVICE_IPS,
    NftBase,
    asks,
)
from proxy.migrate.nft_chains import CLUSTER_IPS, NftChains, name_of
from proxy.migrate.nft_doubts import Doubts
from proxy.migrate.nft_table import NftTable
from proxy.migrate.notes import Notes
from proxy.migrate.outcomes import Outcome, Source
from proxy.migrate.wording import service_at
from rules.elements import Sources, address_of, describe_key
from rules.expressions import Verdict


class NftEntries(Struct):
    """nodeport_addresses: packed; None: at all addresses. pods, hairpins, dropped: as in Beside; pods is None where there
    are no clusterIPs."""

    entries: list[Entry]
    nodeport_addresses: tuple[bytes, ...] | None
    mark: int
    pods: str | None = None
    hairpins: frozenset[bytes] | None = None
    dropped: Sources | None = None


class _Found(Struct):
    """Everything that the maps have of one key."""

    chain: str = ""
    name: str = ""
    verdict: Refusal = ""
    sources: Sources | None = None
    doubtful: bool = False
    damaged: bool = False


def read_family(table: NftTable, notes: Notes) -> NftEntries:
    """notes: takes what is not understood, and what is missing."""
    return _Reader(table, notes).read()


class _Reader:
    def __init__(self, table: NftTable, notes: Notes) -> None:
        self._table, self._notes = table, notes
        self._chains = NftChains(table, notes)
        self._found: dict[bytes, _Found] = {}
        self._doubtful: set[bytes] = set()
        """Keys that a map has a verdict for which was not understood."""

    def read(self) -> NftEntries:
        base = NftBase(self._table, self._chains, self._notes)
        base.check()
        for map_name in (SERVICE_IPS, NODE_PORTS):
            for _, found, chain, comment in self._elements(map_name):
                if isinstance(chain, str):
                    found.chain, found.name = chain, comment or name_of(chain)
        for map_name in (NO_ENDPOINTS, NO_NODE_PORTS):
            for key, found, chain, comment in self._elements(map_name):
                found.name = found.name or comment
                found.verdict = self._refusal(key, chain, found)
        for _, found, chain, _ in self._elements(FIREWALL):
            before = self._notes.seen
            if isinstance(chain, str):
                found.sources = self._chains.sources(chain)
            found.doubtful |= self._notes.seen.doubts > before.doubts
        made = {key: self._entry(key, found) for key, found in sorted(self._found.items())}
        cluster_ips = [
            (key, found)
            for key, found in self._found.items()
            if len(key) != 9 and found.chain.startswith(("service-", "local-"))
        ]
        self._check_cluster_ips(cluster_ips, made)
        addresses, dropped = self._node_port_addresses(), base.dropped() or ()
        doubts = Doubts(self._table, base.doubts, addresses)
        members = frozenset(self._table.members.get(CLUSTER_IPS, ()))
        entries = [self._with_common(entry, base, doubts, members, dropped) for entry in made.values()]
        pods = base.pods() if cluster_ips else None
        return NftEntries(entries, addresses, self._mark(), pods, base.hairpins(), base.dropped())

    def _with_common(
        self, entry: Entry, base: NftBase, doubts: Doubts, cluster_ips: Set[bytes], dropped: Sources
    ) -> Entry:
        """With what is wrong, or not understood, for many of them. cluster_ips: members of the set. dropped: ranges."""
        is_node_port = len(entry.key) == 9
        map_name = NODE_PORTS if is_node_port else SERVICE_IPS
        maps = {map_name} if entry.endpoints or entry.outside else set()
        if entry.refusal or entry.outside_refusal:
            maps.add(NO_NODE_PORTS if is_node_port else NO_ENDPOINTS)
        if entry.sources is not None:
            maps.add(FIREWALL)
        if CLUSTER_IPS in base.concerned and not is_node_port and address_of(entry.key) in cluster_ips:
            maps.add(CLUSTER_IPS)
        damaged = "all" in base.concerned or bool(maps & base.concerned)
        ends = [end[:-4] for end in entry.endpoints | entry.outside]
        if dropped and any(first <= end <= last for end in ends for first, last in dropped):
            self._notes.remark(service_at(entry.key, entry.name), "what goes to some of its endpoints is dropped")
            damaged = True
        if not cluster_ips.isdisjoint(ends):
            self._notes.remark(
                service_at(entry.key, entry.name), f"an endpoint is in the set {CLUSTER_IPS}: it is refused"
            )
            damaged = True
        doubtful = entry.key in self._doubtful or doubts.concern(entry, map_name)
        if not damaged and not doubtful:
            return entry
        return replace(entry, doubtful=entry.doubtful or doubtful, damaged=entry.damaged or damaged)

    def _check_cluster_ips(self, cluster_ips: list[tuple[bytes, _Found]], made: dict[bytes, Entry]) -> None:
        """That they are among the clusterIPs, and that what comes to them from elsewhere is masqueraded."""
        has_set = CLUSTER_IPS in self._table.members
        members = set(self._table.members.get(CLUSTER_IPS, ()))
        for key, found in cluster_ips:
            if has_set and address_of(key) not in members:
                self._notes.remark(service_at(key, found.name), f"its address is not in the set {CLUSTER_IPS}")
                made[key] = replace(made[key], damaged=True)
        if self._chains.marks_cluster_ips():
            return
        lacking = [(key, found) for key, found in cluster_ips if found.chain not in self._chains.marked]
        if self._chains.marked or (self._chains.detector and not has_set):  # up to v1.33
            for key, found in lacking:
                cause = "what comes to this clusterIP from elsewhere is not masqueraded"
                self._notes.remark(service_at(key, found.name), cause)
                made[key] = replace(made[key], damaged=True)
        elif self._chains.detector and lacking:
            table = f"table {self._table.family.nft} kube-proxy"
            self._notes.remark(table, "what comes to clusterIPs from elsewhere is not masqueraded")
            for key, _ in lacking:
                made[key] = replace(made[key], damaged=True)

    def _elements(self, map_name: str) -> Iterator[tuple[bytes, _Found, str | int, str]]:
        """Of each element, its key, where its verdict leads: a chain, or Verdict.DROP; and its comment. Noted, if it is another."""
        for key, (data, comment) in self._table.maps.get(map_name, {}).items():
            whole = bytes((self._table.family,)) + key if len(key) == 8 else key
            if len(whole) not in (9, 8 + self._table.family.address_size):
                self._notes.add(f"map {map_name}", f"it has a key of {len(key)} bytes")
                continue
            chain: str | int = data.decode(errors="replace")
            if len(data) == 4 and data == Verdict.DROP.to_bytes(4):
                chain = int(Verdict.DROP)
            elif chain not in self._table.chains:
                cause = "its element has a verdict that kube-proxy does not use"
                self._notes.add(f"map {map_name}, {describe_key(whole)}", cause)
                self._doubtful.add(whole)
                continue
            yield whole, self._found.setdefault(whole, _Found()), chain, comment.rstrip(":")

    def _refusal(self, key: bytes, chain: str | int, found: _Found) -> Refusal:
        if not isinstance(chain, str):
            return "drop"
        outcome = self._chains.through(chain, Source.OUTSIDE)
        found.doubtful |= outcome.doubtful
        if outcome.protocols - {key[-8]}:
            self._notes.remark(service_at(key, found.name), "what refuses its connections is for another protocol")
            found.damaged = True
        return outcome.refusal

    def _entry(self, key: bytes, found: _Found) -> Entry:
        refusal = found.verdict
        if not found.chain:
            return Entry(
                key,
                found.name,
                refusal=refusal,
                outside_refusal=refusal,
                sources=found.sources,
                doubtful=found.doubtful,
                damaged=found.damaged,
            )
        before = self._notes.seen
        external = len(key) == 9 or found.chain.startswith("external-")
        outside = self._chains.through(found.chain, Source.OUTSIDE)
        inside = self._inside(key, found.chain) if external else outside
        if (outside.protocols | inside.protocols) - {key[-8]}:
            self._notes.remark(service_at(key, found.name), "what leads to its endpoints is for another protocol")
        if refusal and inside.endpoints and outside.endpoints:
            self._notes.remark(service_at(key, found.name), "it is among those without endpoints, and has some")
        lasting = inside if inside.endpoints else outside
        now = self._notes.seen
        return Entry(
            key,
            found.name,
            inside.endpoints,
            outside.endpoints,
            "" if inside.endpoints else inside.refusal or refusal,
            "" if outside.endpoints else outside.refusal or refusal,
            not outside.masquerade if external else None,
            lasting.affinity,
            found.sources,
            doubtful=found.doubtful or outside.doubtful or inside.doubtful or now.doubts > before.doubts,
            damaged=found.damaged or outside.damaged or inside.damaged or now.faults > before.faults,
        )

    def _inside(self, key: bytes, chain: str) -> Outcome:
        """What pods and this node get. It is the same; if not, the one that is not as it should be."""
        node = self._chains.through(chain, Source.NODE)
        if node.endpoints and not node.masquerade:
            self._notes.remark(service_at(key, name_of(chain)), "what this node itself sends there is not masqueraded")
        if self._chains.detector is None:
            return node
        pod = self._chains.through(chain, Source.POD)
        outside = self._chains.through(chain, Source.OUTSIDE)
        if pod.endpoints and pod.masquerade != outside.masquerade:
            cause = f"what pods send there is {'' if pod.masquerade else 'not '}masqueraded"
            self._notes.remark(service_at(key, name_of(chain)), cause)
        if pod.endpoints == node.endpoints:
            return replace(node, doubtful=node.doubtful or pod.doubtful, damaged=node.damaged or pod.damaged)
        self._notes.remark(service_at(key, name_of(chain)), "pods and this node are led to different endpoints")
        usual = "service-" + chain.partition("-")[2]
        wanted = self._chains.through(usual, Source.OUTSIDE).endpoints if usual in self._table.chains else frozenset()
        return pod if node.endpoints == wanted else node

    def _node_port_addresses(self) -> tuple[bytes, ...] | None:
        """Of the rules that ask the map of NodePorts."""
        addresses: set[bytes] = set()
        for steps in self._table.chains.values():
            for step in steps:
                if not any(asks(action, NODE_PORTS) for action in step.actions):
                    continue
                for condition in step.conditions:
                    if condition.kind == "to-node" and not condition.negated:
                        return None
                    if condition.kind == "destination-in" and not condition.negated:
                        addresses |= set(self._table.members.get(str(condition.value), ()))
        return tuple(sorted(addresses))

    def _mark(self) -> int:
        if self._chains.mark:
            return self._chains.mark
        self._notes.remark(f"table {self._table.family.nft} kube-proxy", "no rule sets a mark: nothing is masqueraded")
        return 0
