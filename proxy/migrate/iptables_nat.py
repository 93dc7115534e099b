"""Other programs' iptables rules that lead an address elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from proxy.migrate.facts import Translation
from proxy.migrate.iptables_facts import OURS, owner
from proxy.migrate.iptables_keys import value_of
from proxy.migrate.iptables_save import Saved, rule_of

MOST: Final = 1000
_TARGETS: Final = ("DNAT", "REDIRECT")


def translations(saved: Saved, family: str) -> tuple[Translation, ...]:
    """Those that name a destination, outside kube-proxy's chains."""
    return tuple(islice(_translations(saved, family), MOST))


def _translations(saved: Saved, family: str) -> Iterator[Translation]:
    for name, chain in saved.tables.get("nat", {}).items():
        if name.startswith(OURS) and not owner(name):
            continue
        for line in chain.lines():
            if " -d " in line and any(target in line for target in _TARGETS):
                try:
                    rule = rule_of(line)
                except ValueError:
                    continue
                if rule.target in _TARGETS and (destination := value_of(rule, "-d")):
                    yield Translation(
                        f"chain {family} nat {name}",
                        destination,
                        value_of(rule, "-p").upper(),
                        value_of(rule, "--dport") or value_of(rule, "--dports"),
                        value_of(rule, "--to-destination") or value_of(rule, "--to-ports"),
                    )
