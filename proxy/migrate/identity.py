"""Which Node a report is about, and whether this machine is that node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from proxy.addresses import parse_address
from proxy.model import Node


class Machine(Struct, frozen=True):
    """This machine. names: that it may be known by, the surest first. addresses: packed, of its interfaces. boot: its
    kernel's boot_id."""

    names: tuple[str, ...]
    addresses: frozenset[bytes] = frozenset()
    boot: str = ""


def choose(nodes: Iterable[Node], machine: Machine) -> str:
    """The name of the Node that this machine is, as far as can be told; the only one that there is; '' if there are several
    and none of them is it."""
    names: list[str] = []
    for node in nodes:
        name = node.metadata.name
        if name in machine.names or not machine.addresses.isdisjoint(node_addresses(node)):
            return name
        if len(names) < 2:
            names.append(name)
    return names[0] if len(names) == 1 else ""


def node_addresses(node: Node) -> set[bytes]:
    return set(_addresses(node))


def why_not(node: Node | None, name: str, boot: str, machine: Machine) -> str:
    """Why this machine is not that node; '' if it is. boot: the Node's bootID, '' if it is not told."""
    addresses = node_addresses(node) if node else set()
    if addresses:
        if machine.addresses.isdisjoint(addresses):
            return f"none of the addresses of node {name} is on an interface here"
        if boot and machine.boot and boot != machine.boot and name not in machine.names:
            return f"node {name} runs another kernel: it has another boot ID"
        return ""
    if name in machine.names:
        return ""
    return f"this machine is called {machine.names[0] if machine.names else 'otherwise'}, and not {name}"


def _addresses(node: Node) -> Iterator[bytes]:
    for entry in (node.status.addresses if node.status else None) or ():
        if entry.type in ("InternalIP", "ExternalIP"):
            try:
                packed = parse_address(entry.address)
            except ValueError:
                continue
            if packed[0] != 127:
                yield packed
