"""What the kernel holds against what objects say, found out by somebody who has never seen the agent's state. Pure.

The chains that are always there are compared rule by rule; what elements say, service port by service port (see
integration.chaos.view), so that numbers which depend on the history are not taken for differences.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from integration.chaos.judge import compare
from integration.chaos.view import Torn, expect, read
from proxy.events import Put
from proxy.model import decode
from proxy.settings import Settings
from proxy.state import State
from rules.dump import TableState
from rules.layout import LAYOUTS
from rules.objects import Family

_GROWING = "-special"
"""Chains of this name get rules as they are needed, and keep them."""


def differences(tables: Mapping[Family, TableState], objects: Iterable[Mapping[str, Any]], node: str) -> list[str]:
    """A line each, for people; none: the kernel holds what a fresh agent with the default configuration would make."""
    state = State(node)
    for obj in objects:
        state.apply(Put(decode(obj["kind"], json.dumps(obj).encode())))
    ports = [port for port in state.everything().values() if port]
    wanted = expect(ports, Settings().nodeport_ips(state.node, ()), list(state.service_cidrs))
    missing = [f"table {family.nft}: it is not there" for family in Family if family not in tables]
    if missing:
        return missing
    try:
        found = compare(read(tables), wanted)
    except (Torn, KeyError, AssertionError) as error:
        return [f"it cannot be understood: {error!r}"]
    return found + [line for family in Family for line in _chains(family, tables[family], state)]


def _chains(family: Family, table: TableState, state: State) -> Iterator[str]:
    for chain, rules in LAYOUTS[family].rules(Settings().options, state.service_cidrs):
        there = table.chains.get(chain.name)
        shall = [rule.expressions for rule in rules]
        rules_there = there.rules[: len(shall)] if there and chain.name.endswith(_GROWING) else there and there.rules
        if rules_there != shall:
            yield f"table {family.nft}, chain {chain.name}: other rules than there should be"
