"""How much is measured: sizes, and how often each thing is done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bench.dataplane_services import Size

SIZES: Final = ("100x10", "1000x10", "5000x10", "10000x10", "44000x2", "5000x50")
QUICK_SIZES: Final = ("100x10", "1000x10", "5000x10")
MOST_SERVICES, MOST_PODS = 200_000, 3_000_000
"""Beyond that, addresses would be those that changes are known by."""
MOST_ENDPOINTS = 1000
"""Each Service has one EndpointSlice, and an API server takes no more in one."""


@dataclass(frozen=True)
class Plan:
    """rounds: all of it so often. changes: of one endpoint, a round; services: new and deleted Services, a round; bursts: of each
    kind, a round. rest: seconds without a change, in the first round. timeout: seconds that anything may take. budget: seconds after which a
    round's changes of one kind end early (when LEAST were made). layout_rounds: loads of a layout; after the first one,
    only of those that take less than layout_repeat seconds."""

    rounds: int = 3
    changes: int = 400
    services: int = 100
    bursts: int = 4
    rest: float = 10.0
    timeout: float = 45.0
    budget: float = 10.0
    layout_rounds: int = 3
    layout_repeat: float = 4.0


LEAST: Final = 3
FULL: Final = Plan()
QUICK: Final = Plan(
    rounds=1, changes=150, services=30, bursts=2, rest=3.0, timeout=20.0, budget=2.0, layout_rounds=1, layout_repeat=2.0
)


def sizes(texts: Iterable[str]) -> list[Size]:
    """Of "1000x10", or several of them with commas; each once, in order. Raises ValueError, which says what is wrong with which."""
    found: dict[Size, None] = {}
    for text in (part.strip() for argument in texts for part in argument.split(",")):
        if not text:
            continue
        try:
            size = Size.of(text.lower().replace("×", "x"))
        except ValueError:
            raise ValueError(
                f"{text!r} is no size: it is SERVICESxENDPOINTS, two numbers above 0, as in 1000x10"
            ) from None
        if size.services > MOST_SERVICES or size.services * size.endpoints > MOST_PODS:
            raise ValueError(f"{text!r} is too large: at most {MOST_SERVICES:,} Services and {MOST_PODS:,} endpoints")
        if size.endpoints > MOST_ENDPOINTS:
            raise ValueError(
                f"{text!r} is too large: at most {MOST_ENDPOINTS:,} endpoints for a Service, an EndpointSlice's"
            )
        found[size] = None
    if not found:
        raise ValueError("no size is given")
    return list(found)


def title(size: Size) -> str:
    return f"{size.services:,} × {size.endpoints}"
