"""A plan and what came of it, for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from proxy.detect.ipvs_table import Server
from proxy.detect.numbers import count
from proxy.leftovers.plan import Kept, Plan, TableRemoval
from proxy.leftovers.remove import Failed
from rules.elements import describe_key, service_key

API_VERSION, KIND = "kube-proxy-nft/cleanup/v1", "KubeProxyCleanup"


def text(plan: Plan, failed: Sequence[Failed], *, dry_run: bool) -> str:
    """One line for each thing."""
    return "".join(f"{line}\n" for line in _lines(plan, failed, dry_run))


def _lines(plan: Plan, failed: Sequence[Failed], dry_run: bool) -> Iterator[str]:
    things = list(removals(plan))
    if not things:
        yield (
            "kube-proxy has left nothing here"
            if not plan.unread
            else "nothing of kube-proxy's was found in what could be read"
        )
    else:
        yield "to remove:" if dry_run else "removed, but for what failed:" if failed else "removed:"
        yield from (f"  {thing}" for thing in things)
    for title, items in (("stays:", plan.kept), ("not changed, for you to decide:", plan.notes)):
        if items:
            yield title
            yield from (f"  {item.what}: {item.why}" for item in items)
    for title, causes in (
        ("could not be read:", [(unread.what, unread.cause) for unread in plan.unread]),
        ("FAILED:", [(failure.what, failure.cause) for failure in failed]),
    ):
        if causes:
            yield title
            yield from (f"  {what}: {cause}" for what, cause in causes)


def removals(plan: Plan) -> Iterator[str]:
    """What goes, in the order in which it goes."""
    for table in sorted(plan.tables, key=lambda removal: removal.table.variant == "legacy"):
        yield _table(table)
    for family, name in plan.nft_tables:
        yield f"nftables table {family} {name}"
    if plan.servers:
        connections = sum(server.connections for server in plan.servers)
        cut = f", with {count(connections, 'connection')}, which this cuts" if connections else ""
        yield f"{count(len(plan.servers), 'IPVS virtual server')}{cut}"
    if plan.interface is not None:
        yield f"interface kube-ipvs0 with {count(plan.interface, 'address')}"
    if plan.sets:
        yield f"{count(len(plan.sets), 'ipset')}: {', '.join(plan.sets)}"


def _table(removal: TableRemoval) -> str:
    parts = []
    if removal.rules:
        where = dict.fromkeys(f"{chain} -> {rule.target}" if rule.target else chain for chain, rule in removal.rules)
        parts.append(f"{count(len(removal.rules), 'rule')} ({', '.join(where)})")
    if removal.chains:
        few = len(removal.chains) <= 12
        parts.append(count(len(removal.chains), "chain") + (f" ({', '.join(removal.chains)})" if few else ""))
    if removal.emptied:
        parts.append(f"all rules of {', '.join(removal.emptied)}")
    return f"{removal.table.place}: {', '.join(parts)}"


def counts(plan: Plan) -> dict[str, int]:
    """For a log."""
    return {
        "chains": sum(len(removal.chains) for removal in plan.tables),
        "rules": sum(len(removal.rules) for removal in plan.tables),
        "tables": len(plan.nft_tables),
        "virtual_servers": len(plan.servers),
        "interfaces": int(plan.interface is not None),
        "ipsets": len(plan.sets),
    }


def data(plan: Plan, failed: Sequence[Failed], *, dry_run: bool) -> dict[str, Any]:
    """All of it, each object by its name."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "dryRun": dry_run,
        "iptables": [
            {
                "variant": removal.table.variant,
                "family": removal.table.family,
                "table": removal.table.name,
                "chains": removal.chains,
                "emptiedChains": removal.emptied,
                "rules": [{"chain": chain, "jump": rule.target} for chain, rule in removal.rules],
            }
            for removal in plan.tables
        ],
        "nftablesTables": [{"family": family, "name": name} for family, name in plan.nft_tables],
        "ipvsVirtualServers": [_server(server) for server in plan.servers],
        "interfaces": [] if plan.interface is None else [{"name": "kube-ipvs0", "addresses": plan.interface}],
        "ipsets": plan.sets,
        "kept": [_kept(item) for item in plan.kept],
        "notChanged": [_kept(item) for item in plan.notes],
        "unread": [{"what": unread.what, "cause": unread.cause} for unread in plan.unread],
        "failed": [{"what": failure.what, "cause": failure.cause} for failure in failed],
    }


def _server(server: Server) -> dict[str, Any]:
    address = describe_key(service_key(server.address, server.protocol, server.port))
    return {"address": address, "destinations": server.destinations, "connections": server.connections}


def _kept(item: Kept) -> dict[str, str]:
    return {"what": item.what, "why": item.why}
