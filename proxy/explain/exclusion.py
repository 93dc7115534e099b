"""Why an endpoint of a service port is not led to: the words to what proxy.policy decides. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.policy import LAST_RESORT, READY, TERMINATING, Candidate, Place


def why_not(candidate: Candidate, all_: Sequence[Candidate], place: Place, local_policy: str) -> str:
    """local_policy: the field's name whose Local policy holds; "" where none does."""
    info, _ = candidate
    is_elsewhere = info.node != place.node
    if local_policy and is_elsewhere and any(c[0].node == place.node for c in all_):
        return f"it is on {f'node {info.node}' if info.node else 'no node that it names'}, and {local_policy} is Local"
    rivals = [c for c in all_ if c[0].node == place.node] if local_policy else all_
    if not info.conditions & READY:
        if info.conditions & LAST_RESORT == LAST_RESORT:
            if any(c[0].conditions & READY for c in rivals):
                return "it is terminating, and others are ready"
        elif info.conditions & TERMINATING:
            return "it is terminating, and does not serve any more"
        else:
            return "it is not ready"
    if local_policy and is_elsewhere:
        return f"it is on {f'node {info.node}' if info.node else 'no node that it names'}, and {local_policy} is Local"
    if info.hints.nodes and place.node not in info.hints.nodes:
        return f"its hints are for {_list('node', info.hints.nodes)}"
    if info.hints.zones:
        return f"its hints are for {_list('zone', info.hints.zones)}, and this node is in {place.zone or 'none'}"
    return "the rules do not lead there from this source"


def _list(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(names)}"
