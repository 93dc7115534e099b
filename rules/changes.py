"""What others do to our tables, as the kernel tells the multicast group of nftables. Pure.

The messages of a transaction come together, and a NEWGEN ends them that says whose it was (NFTA_GEN_PROC_NAME). Each
carries the port id of the socket that sent the transaction: so ours are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from rules import neighbours
from rules.dump import read_elements
from rules.layout import TABLE_NAME
from rules.neighbours import Neighbour
from rules.netlink import (
    DELRULE,
    DELSETELEM,
    NEWCHAIN,
    NEWGEN,
    NEWRULE,
    NEWSETELEM,
    SUBSYSTEM,
    Message,
    attributes,
    messages,
    read_text,
)
from rules.objects import Family

_TABLE = (TABLE_NAME + "\0").encode()
_FAMILIES = {int(family): family for family in Family}


class Touched(Struct):
    """What one transaction of somebody else did to one of our tables.

    elements: (set, key) -> (data, comment) as they are now, None: gone. chains: whose rules are others. is_rebuilt:
    more than that, sets or chains or the whole table. who: "nft (pid 123)", '' if unknown.
    """

    family: Family
    elements: dict[tuple[str, bytes], tuple[bytes, str] | None] = field(default_factory=dict)
    chains: set[str] = field(default_factory=set)
    is_rebuilt: bool = False
    who: str = ""


class Changes:
    """Datagrams in, foreign transactions out. own: the port id whose transactions are ours.

    neighbours: chains that came to stand where ours do; whoever wants them takes them away.
    """

    def __init__(self, own: int) -> None:
        self._own = own
        self.neighbours: list[Neighbour] = []
        self._arriving: list[Neighbour] = []
        self._open: dict[Family, Touched] = {}
        self._open_port = 0

    def feed(self, data: bytes | memoryview) -> list[Touched]:
        """The transactions that are complete now and concern our tables. Raises ValueError for what is no netlink."""
        done: list[Touched] = []
        for message in messages(data):
            if message.kind >> 8 != SUBSYSTEM or message.port == self._own:
                continue
            kind = message.kind & 0xFF
            if kind == NEWGEN:
                self.neighbours += self._arriving
                self._arriving = []
                if self._open:
                    # Another one's, if the end of what was told before was lost.
                    who = _who(message) if message.port == self._open_port else ""
                    for touched in self._open.values():
                        touched.who = who
                    done += self._open.values()
                    self._open = {}
            elif (
                len(message.body) > 8
                and message.body[0] in _FAMILIES
                and bytes(message.body[8 : 8 + len(_TABLE)]) == _TABLE
            ):
                self._open_port = message.port
                self._note(kind, _FAMILIES[message.body[0]], message)
            elif kind == NEWCHAIN and (neighbour := neighbours.read(message)):
                self._arriving.append(neighbour)
        return done

    def _note(self, kind: int, family: Family, message: Message) -> None:
        touched = self._open.setdefault(family, Touched(family))
        if kind in (NEWSETELEM, DELSETELEM):
            name = _name(message, 2)
            for key, element in read_elements([message], TABLE_NAME):
                touched.elements[name, key] = element if kind == NEWSETELEM else None
        elif kind in (NEWRULE, DELRULE):
            touched.chains.add(_name(message, 2))
        else:
            touched.is_rebuilt = True


def _name(message: Message, which: int) -> str:
    return read_text(dict(attributes(message.body[4:])).get(which, b""))


def _who(message: Message) -> str:
    found = dict(attributes(message.body[4:]))
    name = read_text(found.get(3, b""))
    pid = int.from_bytes(found.get(2, b""))
    return f"{name or 'a process'} (pid {pid})" if pid else name


def merge(changes: Iterable[Touched]) -> Iterator[Touched]:
    """One for each family: what several transactions did, the last word of each counts."""
    by_family: dict[Family, Touched] = {}
    for touched in changes:
        one = by_family.setdefault(touched.family, Touched(touched.family))
        one.elements |= touched.elements
        one.chains |= touched.chains
        one.is_rebuilt |= touched.is_rebuilt
        one.who = ", ".join(dict.fromkeys(filter(None, [*one.who.split(", "), touched.who])))
    yield from by_family.values()
