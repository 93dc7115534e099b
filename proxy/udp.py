"""What a change of service ports means for UDP flows that conntrack remembers. Pure values.

A UDP sender that never stops keeps its conntrack entry for ever, and with it the endpoint that it was led to. TCP
notices by itself.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from rules.objects import PROTOCOLS


class UdpFlows(Struct, frozen=True, gc=False):
    """Of one service port. serving: packed endpoints (rules.elements.endpoint) that flows may stay with, whatever the
    policies say of new ones. usable: new flows are led somewhere."""

    serving: frozenset[bytes] = frozenset()
    usable: bool = False


NO_FLOWS: Final = UdpFlows()


class UdpChange(Struct, frozen=True):
    """key: see rules.elements.ServicePort. gone: flows from the key to these endpoints are to be forgotten.
    usable: so are flows to the key's address that were let through as they were, before it led anywhere."""

    key: bytes
    gone: frozenset[bytes]
    usable: bool


def is_udp(key: bytes) -> bool:
    """Whether a service key is one of UDP."""
    return key[-8] == PROTOCOLS["UDP"]
