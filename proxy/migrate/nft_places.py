"""Where the base chains of kube-proxy's nftables tables stand among the kernel's own steps: what they see there. Pure.

linux/netfilter_ipv4.h: connections are tracked at -200, and destinations translated at -100, both at prerouting and output.
Chains of type nat are asked at -100 and 100 whatever their priority is, which only tells their order among each other.
"""

from __future__ import annotations

from typing import Final

from rules.foreign import ForeignChain

PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING = range(5)
TRACKED, TRANSLATED = -200, -100
USUAL: Final = frozenset({0, -110, -90})
"""Priorities of chains of type filter, in all versions."""
NAT_USUAL: Final = {PREROUTING: -100, OUTPUT: -100, POSTROUTING: 100}
HOOKS: Final = {
    PREROUTING: "prerouting",
    INPUT: "input",
    FORWARD: "forward",
    OUTPUT: "output",
    POSTROUTING: "postrouting",
}


def sees_states(base: ForeignChain) -> bool:
    """Whether connections are tracked before; else none is new to it."""
    return base.hook not in (PREROUTING, OUTPUT) or base.priority > TRACKED


def is_before_translation(base: ForeignChain) -> bool:
    """Whether all packets still have the Service's address. (At the very same priority, the older of the two is first.)"""
    return base.hook in (PREROUTING, OUTPUT) and base.priority < TRANSLATED


def is_after_translation(base: ForeignChain) -> bool:
    """Whether no packet that goes to an endpoint has a Service's address any more."""
    return base.type != "nat" and (base.hook not in (PREROUTING, OUTPUT) or base.priority > TRANSLATED)


def is_usual(base: ForeignChain) -> bool:
    """Whether a version of kube-proxy gives a chain this priority."""
    if base.type == "nat":
        return base.priority == NAT_USUAL.get(base.hook)
    return base.type == "filter" and base.priority in USUAL


def text_of(base: ForeignChain) -> str:
    return f"chain {base.name} ({base.type}, {HOOKS.get(base.hook, base.hook)} {base.priority})"
