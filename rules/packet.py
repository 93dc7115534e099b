"""The first packet of a connection, and what it takes along from rule to rule."""

from __future__ import annotations

from msgspec import Struct

from rules.objects import Family


class Packet(Struct, frozen=True):
    """source, destination: packed. protocol: 6, 17, 132. interface: the one of the node that it came in through; "":
    this node sends it. is_local: its source is one of this node's addresses."""

    family: Family
    source: bytes
    destination: bytes
    protocol: int
    port: int
    interface: str = ""
    is_local: bool = False


class PacketState(Struct, frozen=True):
    """What a packet takes along from rule to rule. priority: in host order, as in a register. led: where it is led,
    packed address and port. tickets: what was put into maps for it, (map, key, data), b"" where it was deleted; the
    last one counts. path: as in rules.interpret.Fate."""

    mark: int = 0
    connection_mark: int = 0
    priority: bytes = bytes(4)
    led: tuple[bytes, int] | None = None
    is_masqueraded: bool = False
    tickets: tuple[tuple[str, bytes, bytes], ...] = ()
    path: tuple[str, ...] = ()

    def ticket(self, name: str, key: bytes) -> bytes | None:
        return next((data for map_, k, data in reversed(self.tickets) if (map_, k) == (name, key)), None)
