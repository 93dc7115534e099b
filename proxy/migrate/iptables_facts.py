"""What other programs' iptables rules do that a change of the proxy has to do with: bits of the packet mark, and what passes
the FORWARD chain. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from ipaddress import ip_network
from typing import Final, Literal

from proxy.addresses import Network
from proxy.migrate.facts import WHOLE_MARK, ForwardFilter, MarkUse
from proxy.migrate.iptables_save import Option, Rule, Saved, Table, rule_of

OURS: Final = "KUBE-"
"""kube-proxy's chains, and kubelet's."""
OWNERS: Final = (
    ("calico", "cali-"),
    ("cilium", "CILIUM_"),
    ("flannel", "FLANNEL-"),
    ("kube-router", "KUBE-ROUTER-"),
    ("kube-router", "KUBE-POD-FW-"),
    ("kube-router", "KUBE-NWPLCY-"),
    ("weave", "WEAVE"),
    ("antrea", "ANTREA-"),
    ("portmap", "CNI-"),
    ("docker", "DOCKER"),
    ("tailscale", "ts-"),
    ("libvirt", "LIBVIRT_"),
    ("ufw", "ufw"),
)
LOCALHOST_COUNTER: Final = "localhost_nps_accepted_pkts"
PASSING: Final = frozenset(
    {"CHECKSUM", "CLASSIFY", "CONNMARK", "CT", "DSCP", "HL", "LOG", "MARK", "NFLOG", "NOTRACK", "SET", "TCPMSS", "TEE"}
    | {"TOS", "TRACE", "TTL"}
)
"""Targets behind which a packet goes on to the next rule."""
SHOWN: Final = 20
DEPTH: Final = 16
_POD_INTERFACES: Final = re.compile(
    r"(cali|veth|cilium_|lxc|cni|cbr0|kube-bridge|flannel|vxlan\.calico|tunl0|weave|antrea|eni)"
)
_CONTAINER_INTERFACES: Final = re.compile(r"(docker|br-|virbr|lxdbr|podman|lo\b|tailscale)")

Match = Literal["yes", "no", "maybe"]
Outcome = Literal["accept", "drop", "through"]


def marks(saved: Saved, family: str) -> Iterator[MarkUse]:
    """Bits that rules outside kube-proxy's chains set or match."""
    seen: set[MarkUse] = set()
    for table, chains in saved.tables.items():
        for name, chain in chains.items():
            program = owner(name)
            if name.startswith(OURS) and not program:
                continue
            for line in chain.lines():
                if "mark" not in line.lower():
                    continue
                for mask, of_connections in _masks(line):
                    use = MarkUse(f"chain {family} {table} {name}", mask, program, of_connections)
                    if mask and use not in seen:
                        seen.add(use)
                        yield use


def owner(chain: str) -> str:
    """The program that names its chains so; "" if that is not known."""
    return next((program for program, prefix in OWNERS if chain.startswith(prefix)), "")


def _masks(line: str) -> Iterator[tuple[int, bool]]:
    """Each with whether it is of connections."""
    try:
        rule = rule_of(line)
    except ValueError:
        return
    for option in (*rule.matches, *rule.arguments):
        if option.name in ("--mark", "--set-mark", "--set-xmark", "--or-mark", "--xor-mark", "--and-mark"):
            value, slash, mask = option.value.partition("/")
            try:
                bits = int(mask or value, 0) if slash or option.name in ("--or-mark", "--xor-mark") else WHOLE_MARK
                mask_of = ~int(value, 0) & WHOLE_MARK if option.name == "--and-mark" else bits
                yield mask_of, option.module.lower() == "connmark"
            except ValueError:
                continue
        elif option.name in ("--nfmask", "--ctmask"):
            try:
                yield int(option.value, 0), option.name == "--ctmask"
            except ValueError:
                continue


def filters(saved: Saved) -> str:
    """The filter table without kube-proxy's chains, as iptables-save prints it."""
    chains = {
        name: chain
        for name, chain in saved.tables.get("filter", {}).items()
        if not name.startswith(OURS) or owner(name)
    }
    declared = [f":{name} {chain.policy or '-'} [0:0]" for name, chain in chains.items()]
    lines = [line for chain in chains.values() for line in chain.lines()]
    return "\n".join(["*filter", *declared, *lines, "COMMIT", ""]) if chains else ""


def forward(saved: Saved, family: str, pods: Sequence[Network]) -> ForwardFilter | None:
    """The FORWARD chain, if it drops anything. pods: the ranges that pods are in."""
    table = saved.tables.get("filter", {})
    chain = table.get("FORWARD")
    if chain is None:
        return None
    found = _walk(table, "FORWARD", pods, {})
    if "through" in found:
        found = (found - {"through"}) | {"drop" if chain.policy == "DROP" else "accept"}
    if found == {"accept"} and chain.policy != "DROP":
        return None
    lets: Literal["yes", "no", "unknown"] = "unknown"
    if len(found) == 1:
        lets = "yes" if "accept" in found else "no"
    accepts = [line.partition("-A FORWARD ")[2] for line in chain.lines() if line.endswith("-j ACCEPT")]
    return ForwardFilter(f"chain {family} filter FORWARD", lets, tuple(accepts[:SHOWN]))


def _walk(table: Table, name: str, pods: Sequence[Network], known: dict[str, set[Outcome]]) -> set[Outcome]:
    """What may become of a new connection from outside that was sent to a pod, without kube-proxy's chains."""
    if name in known:
        return known[name]
    known[name] = {"through"}  # whoever comes back here goes round in circles
    found: set[Outcome] = set()
    for line in table[name].lines() if name in table else ():
        try:
            rule = rule_of(line)
        except ValueError:
            found |= {"accept", "drop"}
            continue
        matched = _matches(rule, pods)
        if matched == "no" or (rule.target.startswith(OURS) and not owner(rule.target)):
            continue
        if rule.target == "RETURN":
            found.add("through")
            if matched == "yes":
                break
            continue
        outcome = _outcome(rule, table, pods, known)
        found |= outcome - {"through"}
        if matched == "yes" and "through" not in outcome:
            break
    else:
        found.add("through")
    known[name] = found
    return found


def _outcome(rule: Rule, table: Table, pods: Sequence[Network], known: dict[str, set[Outcome]]) -> set[Outcome]:
    if rule.target == "ACCEPT":
        return {"accept"}
    if rule.target in ("DROP", "REJECT"):
        return {"drop"}
    if rule.target in table:
        return _walk(table, rule.target, pods, known) if len(known) < 10_000 else {"accept", "drop", "through"}
    if rule.target in PASSING or not rule.target:
        return {"through"}
    return {"accept", "drop", "through"}  # NFQUEUE; and chains that were not listed


def _matches(rule: Rule, pods: Sequence[Network]) -> Match:
    results = {_option(option, pods) for option in rule.matches}
    return "no" if "no" in results else "maybe" if "maybe" in results else "yes"


def _option(option: Option, pods: Sequence[Network]) -> Match:
    found = _plain_option(option, pods)
    if not option.negated or found == "maybe":
        return found
    return "no" if found == "yes" else "yes"


def _plain_option(option: Option, pods: Sequence[Network]) -> Match:
    match option.name:
        case "" | "--comment":
            return "yes"
        case "--ctstate" | "--state":
            states = option.value.split(",")
            return "yes" if "NEW" in states or "DNAT" in states else "no"
        case "-d" | "-s":
            return network_match(option.name, option.value, pods)
        case "-i" | "-o":
            return interface_match(option.value, is_in=option.name == "-i")
    return "maybe"


def network_match(option: str, network: str, pods: Sequence[Network]) -> Match:
    """Whether a connection from outside to a pod is meant. option: "-d" or "-s"."""
    return _destination(network, pods) if option == "-d" else _source(network, pods)


def interface_match(name: str, *, is_in: bool) -> Match:
    """The same by the name of an interface, or its beginning. is_in: it comes through it."""
    if _CONTAINER_INTERFACES.match(name):
        return "no"
    return "no" if _POD_INTERFACES.match(name) and is_in else "maybe"


def _destination(text: str, pods: Sequence[Network]) -> Match:
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return "maybe"
    ranges = [pod for pod in pods if pod.version == network.version]
    if network.prefixlen == 0 or (ranges and all(pod.subnet_of(network) for pod in ranges)):  # type: ignore[arg-type]
        return "yes"
    return "maybe" if not ranges or any(pod.overlaps(network) for pod in ranges) else "no"


def _source(text: str, pods: Sequence[Network]) -> Match:
    """The connection comes from elsewhere: from none of the pods' addresses."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return "maybe"
    if network.prefixlen == 0:
        return "yes"
    inside = any(pod.version == network.version and network.subnet_of(pod) for pod in pods)  # type: ignore[arg-type]
    return "no" if inside else "maybe"
