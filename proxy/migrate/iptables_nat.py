"""Other programs' iptables rules that lead an address elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from proxy.migrate.facts import Translation
from proxy.migrate.iptables_facts import OURS, owner
from proxy.migrate.iptables_save import Rule, Saved, rule_of

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
                if rule.target in _TARGETS and (destination := _value(rule, "-d")):
                    yield Translation(
                        f"chain {family} nat {name}",
                        destination,
                        _value(rule, "-p").upper(),
                        _value(rule, "--dport") or _value(rule, "--dports"),
                        _value(rule, "--to-destination") or _value(rule, "--to-ports"),
                    )


def _value(rule: Rule, name: str) -> str:
    """Of an option that is there and not negated."""
    option = rule.option(name)
    return option.value if option and not option.negated else ""
