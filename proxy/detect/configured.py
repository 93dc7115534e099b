"""What several readers of configurations do with their evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from proxy.detect.evidence import ConfiguredMode, Evidence, Place, Unreadable


def set_aside(evidence: Iterable[Evidence], note: str) -> list[Evidence]:
    """Of a configuration that does not decide: the mode that it would ask for, and why it does not. Its options and gates
    mean nothing then."""
    return [msgspec.structs.replace(e, overridden=True, note=note) for e in evidence if isinstance(e, ConfiguredMode)]


def off(place: Place, because: str) -> Unreadable:
    """A configuration that switches kube-proxy off."""
    remedy = "give the configuration of what handles Services instead"
    return Unreadable(place=place, cause=f"no kube-proxy is started: {because}", remedy=remedy, harmless=True)


def distinct(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Each once: what two readers found at the same place."""
    return list(dict.fromkeys(evidence))


def same_meaning(first: Iterable[Evidence], second: Iterable[Evidence]) -> bool:
    """Whether they say the same, wherever it is written."""
    return _meaning(first) == _meaning(second)


def _meaning(evidence: Iterable[Evidence]) -> list[str]:
    """Without places."""
    return sorted(repr({k: v for k, v in msgspec.to_builtins(e).items() if k != "place"}) for e in evidence)
