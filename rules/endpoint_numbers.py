"""What numbers say: which endpoint of a service port, in which of its lists, or how many there are to draw from. Pure.

They are parts of keys, data of maps, and what travels in a packet's priority: rules/service_ports.py.
"""

from __future__ import annotations

from typing import Final

from rules.elements import index

MAX_ENDPOINTS: Final = 65536
"""In one list of a service port."""
EXACT: Final = 16
"""Up to here there is a chain for each number of endpoints."""
LOCAL: Final = MAX_ENDPOINTS
"""Where the numbers of the second list begin."""
TICKET: Final = 0x4B50_0000
"""What travels in a packet's priority is above it ("KP"), so that a priority of somebody else's is not cleared."""
TICKET_MASK: Final = 0xFFFC_0000
"""Under it, a priority that says TICKET is ours."""
HERE: Final = 0x0002_0000
"""Added to a number of endpoints, some of which may connect to themselves."""


def band(endpoints: int) -> int:
    """Which band a number of endpoints (>= 1) belongs to: 0 for 1, 1 for 2, 2 for 3 and 4, 3 for 5 to 8 …"""
    return (endpoints - 1).bit_length()


def drawn_below(endpoints: int) -> int:
    """A service port with so many endpoints (>= 1) draws numbers below this: their number, or a power of two."""
    return endpoints if endpoints <= EXACT else 2 ** band(endpoints)


POWERS: Final = tuple(2**i for i in range(1, band(MAX_ENDPOINTS) + 1))
"""The powers of two that are drawn below."""
MODULI: Final = (*range(1, EXACT + 1), *(power for power in POWERS if power > EXACT))
"""All that `drawn_below` can give: below each of them, a chain draws."""


def shown(endpoints: int, *, here: bool) -> bytes:
    """What maps say of a service port with so many endpoints (>= 1). here: some of them may connect to themselves."""
    return index(TICKET | (HERE if here else 0) | drawn_below(endpoints))
