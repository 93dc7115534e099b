"""Asks the kernel which chains others have, in the network namespace of the thread that opens it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final, Self

from rules.errors import KernelUnreachable
from rules.kernel import connect
from rules.neighbours import FAMILIES, Neighbour, chain_request, chains_request, read
from rules.netlink import NLM_F_DUMP_INTR, Message
from rules.netlink_socket import DAMAGED, Replies

MAX_NEIGHBOURS: Final = 256
"""More than anybody would read."""
TRIES: Final = 3
"""How often a listing is read again that a change disturbed. The change itself is heard of in another way."""
PATIENCE: Final = 10.0
"""Seconds for one piece of an answer. The kernel has it at once; this is for a kernel that has none."""

_NUMBERS = {name: number for number, name in FAMILIES.items()}


class Lookout:
    """A context manager, for one thread. Everything raises KernelUnreachable."""

    def __init__(self) -> None:
        self._sequence = 0
        self._socket = connect(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def neighbours(self) -> list[Neighbour]:
        """At most MAX_NEIGHBOURS. Takes some microseconds a foreign chain, and nothing for what is in it."""
        found: dict[Neighbour, None] = {}
        for family in FAMILIES:
            for _ in range(TRIES):
                disturbed = False
                for reply in self._ask(chains_request(family, self._next())):
                    disturbed |= bool(reply.flags & NLM_F_DUMP_INTR)
                    neighbour = read(reply)
                    if neighbour and len(found) < MAX_NEIGHBOURS:
                        found[neighbour] = None
                if not disturbed:
                    break
        return list(found)

    def has(self, family: str, table: str, chain: str) -> bool:
        """Whether somebody has this chain. family: of FAMILIES."""
        try:
            return any(True for _ in self._ask(chain_request(_NUMBERS[family], table, chain, self._next())))
        except KernelUnreachable as error:
            if error.errno == errno.ENOENT:
                return False
            raise

    def _ask(self, request: bytes) -> Iterator[Message]:
        try:
            for piece in Replies(self._socket, request):
                yield from piece
        except OSError as error:
            raise KernelUnreachable(error.errno or errno.ETIMEDOUT, "cannot read nftables' chains") from error
        except DAMAGED as error:
            raise KernelUnreachable(errno.EBADMSG, f"cannot understand what nftables says ({error})") from error

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence
