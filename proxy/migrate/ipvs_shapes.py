"""The rules that kube-proxy's IPVS mode has in iptables: the same on every node, since ipsets have what differs. Pure.

A rule of a set that has no members is left out. What is none of them somebody else has written, or changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from proxy.migrate.entries import Entry
from proxy.migrate.iptables_save import Option, Rule
from rules.elements import is_node_port
from rules.objects import PROTOCOLS

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
HARMLESS: Final = ("", "LOG", "NFLOG", "TRACE")
_ACCEPTING: Final = ("--match-set {} dst,dst ! --physdev-is-in ! --src-type LOCAL ACCEPT",
                     "--match-set {} dst,dst --dst-type LOCAL ACCEPT")  # fmt: skip
_NODE_PORTS: Final = tuple(
    f"-p {protocol} --match-set NODE-PORT{kind}-{protocol.upper()}{suffix} {target}"
    for protocol, suffix in (("tcp", " dst"), ("udp", " dst"), ("sctp", "-HASH dst,dst"))
    for kind, target in (("-LOCAL", "RETURN"), ("", "KUBE-MARK-MASQ"))
)
_RETURNING: Final = tuple(
    f"--match-set {name} dst,dst RETURN" for name in ("LOAD-BALANCER", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL")
)
_GUARDS: Final = (
    "--match-set LOAD-BALANCER-SOURCE-CIDR dst,dst,src RETURN",
    "--match-set LOAD-BALANCER-SOURCE-IP dst,dst,src RETURN",
)
REFUSED: Final = "--ctstate NEW --match-set IPVS-IPS dst REJECT"
SHAPES: Final[dict[tuple[str, str], frozenset[str]]] = {
    ("nat", "KUBE-SERVICES"): frozenset(
        {
            "-s loopback RETURN",
            "! -s pods --match-set CLUSTER-IP dst,dst KUBE-MARK-MASQ",
            "! -i pods --match-set CLUSTER-IP dst,dst KUBE-MARK-MASQ",
            "--match-set CLUSTER-IP dst,dst KUBE-MARK-MASQ",
            "--match-set CLUSTER-IP src,dst KUBE-MARK-MASQ",
            "--match-set CLUSTER-IP dst,dst ACCEPT",
            "--match-set LOAD-BALANCER dst,dst KUBE-LOAD-BALANCER",
            "--match-set LOAD-BALANCER dst,dst ACCEPT",
            "--match-set EXTERNAL-IP dst,dst KUBE-MARK-MASQ",
            *(shape.format(name) for shape in _ACCEPTING for name in ("EXTERNAL-IP", "EXTERNAL-IP-LOCAL")),
            "--dst-type LOCAL KUBE-NODE-PORT",
        }
    ),
    ("nat", "KUBE-LOAD-BALANCER"): frozenset(
        {
            "--match-set LOAD-BALANCER-FW dst,dst KUBE-FIREWALL",  # up to v1.25
            "--match-set LOAD-BALANCER-LOCAL dst,dst RETURN",
            "KUBE-MARK-MASQ",
        }
    ),
    ("nat", "KUBE-NODE-PORT"): frozenset(_NODE_PORTS),
    ("filter", "KUBE-NODE-PORT"): frozenset({"--match-set HEALTH-CHECK-NODE-PORT dst ACCEPT"}),
    ("filter", "KUBE-PROXY-FIREWALL"): frozenset({"--match-set LOAD-BALANCER-FW dst,dst KUBE-SOURCE-RANGES-FIREWALL"}),
    ("filter", "KUBE-SOURCE-RANGES-FIREWALL"): frozenset({*_GUARDS, "DROP"}),
    ("filter", "KUBE-IPVS-FILTER"): frozenset({*_RETURNING, "--match-set HEALTH-CHECK-NODE-PORT dst RETURN", REFUSED}),
}
"""(table, chain) -> its rules, as `shape` writes them."""


def shape(rule: Rule) -> str:
    """What a rule does, without its comment, the addresses of pods, and the family."""
    words = [_word(option) for option in rule.matches]
    return " ".join([*filter(None, words), f"-g {rule.target}" if rule.goto else rule.target]).strip()


def missing(there: Collection[tuple[str, str, str]], entries: Collection[Entry]) -> Iterator[tuple[str, str]]:
    """Rules that these entries need: where, and what follows without. there: (table, chain, shape) of those that there are.
    Only of chains that there are: versions differ."""
    chains = {(table, chain) for table, chain, _ in there}
    for (table, chain), needed, otherwise in _needed(there, entries):
        if (table, chain) in chains and not any((table, chain, one) in there for one in needed):
            yield f"{table}: chain {chain} lacks {' or '.join(needed)}", otherwise


def _needed(
    there: Collection[tuple[str, str, str]], entries: Collection[Entry]
) -> Iterator[tuple[tuple[str, str], tuple[str, ...], str]]:
    services, filters = ("nat", "KUBE-SERVICES"), ("filter", "KUBE-IPVS-FILTER")
    names = {
        name: any((*services, f"--match-set {name} dst,dst {target}") in there for target in targets)
        for name, targets in (
            ("CLUSTER-IP", ("ACCEPT",)),
            ("LOAD-BALANCER", ("ACCEPT", "KUBE-LOAD-BALANCER")),
            ("EXTERNAL-IP", ("KUBE-MARK-MASQ",)),
        )
    }
    if (*filters, REFUSED) in there:
        for name, is_there in names.items():
            if is_there:
                cause = "what goes to such addresses is refused"
                yield filters, (f"--match-set {name} dst,dst RETURN",), cause
    if names["LOAD-BALANCER"]:
        cause = "what goes to load balancers' addresses is not masqueraded"
        yield ("nat", "KUBE-LOAD-BALANCER"), ("KUBE-MARK-MASQ",), cause
    for protocol in ("tcp", "udp"):
        ports = [one for one in entries if is_node_port(one.key) and one.key[-8] == PROTOCOLS[protocol.upper()]]
        if any(one.keeps_source is False for one in ports):
            needed = f"-p {protocol} --match-set NODE-PORT-{protocol.upper()} dst KUBE-MARK-MASQ"
            yield ("nat", "KUBE-NODE-PORT"), (needed,), "what goes to NodePorts is not masqueraded"
    if any(not is_node_port(one.key) and one.keeps_source for one in entries):
        local = "--match-set LOAD-BALANCER-LOCAL dst,dst RETURN"
        external = any((*services, shape_.format("EXTERNAL-IP-LOCAL")) in there for shape_ in _ACCEPTING)
        if not external:
            cause = "clients of load balancers' addresses with a local policy are masqueraded"
            yield ("nat", "KUBE-LOAD-BALANCER"), (local,), cause
    if any(one.sources is not None for one in entries):
        cause = "source ranges keep nobody out"
        guard = "--match-set LOAD-BALANCER-FW dst,dst KUBE-SOURCE-RANGES-FIREWALL"
        yield ("filter", "KUBE-PROXY-FIREWALL"), (guard,), cause
        yield ("filter", "KUBE-SOURCE-RANGES-FIREWALL"), ("DROP",), cause
        cause = "source ranges let nobody in"
        yield ("filter", "KUBE-SOURCE-RANGES-FIREWALL"), _GUARDS, cause


def _word(option: Option) -> str:
    if option.name in ("", "--comment"):
        return "" if option.name or option.module in ("tcp", "udp", "sctp") else f"-m {option.module}"
    value = option.value
    if option.name == "--match-set":
        value = value.removeprefix("KUBE-6-").removeprefix("KUBE-")
    elif option.name in ("-s", "-i") and option.negated:
        value = "pods"
    elif option.name == "-s" and value in LOOPBACK:
        value = "loopback"
    return " ".join(filter(None, ("!" if option.negated else "", option.name, value)))
