"""Which number each endpoint of a service port has. Pure.

Numbers decide how many elements a change costs, and with session affinity which clients move.
"""

from __future__ import annotations

from collections.abc import Sequence

Slots = tuple[bytes | None, ...]
"""Endpoints by number; None: a number that nobody has."""


def place(before: Slots, after: Sequence[bytes]) -> Slots:
    """The endpoints of `after`, numbered so that as few as possible of `before` change their number.

    New ones take the places of those that go; what is still a gap then is filled from the end. No gaps: 0..N-1.
    """
    if not before or not after:
        return tuple(after)
    staying = set(after)
    known = set(before)
    placed: list[bytes | None] = [endpoint if endpoint in staying else None for endpoint in before]
    fresh = [endpoint for endpoint in after if endpoint not in known]
    fresh.reverse()
    for i, endpoint in enumerate(placed):
        if endpoint is None and fresh:
            placed[i] = fresh.pop()
    result: list[bytes] = []
    i = 0
    while i < len(placed):
        endpoint = placed[i]
        while endpoint is None and len(placed) > i + 1:
            endpoint = placed.pop()
        if endpoint is not None:
            result.append(endpoint)
        i += 1
    fresh.reverse()
    return (*result, *fresh)


def place_sticky(before: Slots, after: Sequence[bytes]) -> Slots:
    """The same where clients hold numbers: one that leads to a living endpoint leads to it for as long as that lives.

    So an endpoint may have several numbers: when a gap has to be filled, the last one gets it in addition. Every
    endpoint has a number below `dense(...)`, and all of those are somebody's. Under endless rolling updates there are
    about two numbers an endpoint, and nobody gets more than twice the average share of new clients.
    """
    alive = set(after)
    slots: list[bytes | None] = [endpoint if endpoint in alive else None for endpoint in before]
    lowest: dict[bytes, int] = {}
    for i, endpoint in enumerate(slots):
        if endpoint is not None:
            lowest.setdefault(endpoint, i)
    gaps = [i for i, endpoint in enumerate(slots) if endpoint is None]
    gaps.reverse()
    for endpoint in after:
        if endpoint in lowest:
            continue
        i = gaps.pop() if gaps else len(slots)
        slots[i : i + 1] = [endpoint]
        lowest[endpoint] = i
    last_first = sorted(lowest, key=lowest.__getitem__, reverse=True)
    for endpoint in last_first:
        if not gaps or gaps[-1] > lowest[endpoint]:
            break
        slots[gaps.pop()] = endpoint
    while slots and slots[-1] is None:
        slots.pop()
    return tuple(slots)


def dense(slots: Slots) -> int:
    """How many numbers from 0 on are somebody's."""
    return next((i for i, endpoint in enumerate(slots) if endpoint is None), len(slots))
