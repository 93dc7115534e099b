"""Was there a moment whose objects allow what the kernel holds?

Services, EndpointSlices, ServiceCIDRs and Nodes are watched apart, so each kind has a moment of its own: what the
kernel holds must be what a fresh agent would make of all Services as they were at one moment, all EndpointSlices as
they were at one moment, and so on. No kind's moment may be before the one that an earlier commit needed: nobody goes
back in time. Among the moments that would do, the first is taken; so what follows is never forbidden wrongly.

Every version of a Service has an externalIP of its own, and every version of the Node an address (see `changes`), so
that their moments can be told from the tables alone, whatever the endpoints are; and then those of the slices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any, Final

from integration.chaos.ledger import Change, Ledger
from integration.chaos.view import Torn, View, describe, expect, read
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR
from proxy.settings import Settings
from proxy.state import State
from rules.dump import TableState
from rules.elements import ServicePort
from rules.objects import Family

PARTS: Final[Mapping[str, Callable[[View], Any]]] = {
    SERVICE_CIDR: lambda view: view.dropped,
    NODE: lambda view: {where: keys for where, keys in view.shared.items() if where[1] == "nodeport-ips"},
    SERVICE: lambda view: (
        view.gates(),
        {where: keys for where, keys in view.shared.items() if where[1] in ("cluster-ips", "external-ips")},
    ),
    ENDPOINT_SLICE: lambda view: (view.ports, view.shared),
}
"""What of a view each kind decides, once those before it are known. In the order in which they are found out."""

UNLISTED: Final = (SERVICE_CIDR, NODE)
"""The kinds that an agent may start without, if they cannot be listed in time."""


class Violation(AssertionError):
    """The kernel holds, or held, what it must not."""


class Moment:
    """The objects as they were after so many changes of each kind, and what a fresh agent would make of them."""

    def __init__(self, ledger: Ledger, node: str) -> None:
        self._ledger = ledger
        self._state = State(node)
        self._ports: dict[bytes, ServicePort] = {}
        self._view: View | None = None
        self.position = dict.fromkeys(PARTS, 0)

    def step(self, kind: str) -> None:
        """One change on. The caller sees to it that there is one."""
        self._state.apply(self._ledger.changes[kind][self.position[kind]].event)
        self.position[kind] += 1
        wanted = self._state.wanted()
        for key, port in wanted.items():
            if port is None:
                self._ports.pop(key, None)
            else:
                self._ports[key] = port
        self._state.settle(wanted)
        self._view = None

    def go_to(self, position: Mapping[str, int]) -> None:
        for kind, count in position.items():
            while self.position[kind] < count:
                self.step(kind)

    @property
    def view(self) -> View:
        if self._view is None:
            addresses = Settings().nodeport_ips(self._state.node, ())
            self._view = expect(self._ports.values(), addresses, list(self._state.service_cidrs))
        return self._view


class Judge:
    """Looks at each state of the kernel in turn. commits: how many; view: of the last one; began: time.monotonic() when
    it all began.

    What the ledger has now any agent must know, of those kinds that it may not start without.
    """

    def __init__(self, ledger: Ledger, node: str) -> None:
        self._ledger, self._node = ledger, node
        self._moment = Moment(ledger, node)
        self._moment.go_to({kind: len(ledger.changes[kind]) for kind in PARTS if kind not in UNLISTED})
        self._agent = 0
        self.commits = 0
        self.view = View()
        self.began = time.monotonic()

    def _begin(self, agent: int) -> None:
        """Another agent: it may be that some kinds come to it only after its first commit."""
        self._agent = agent
        position = {kind: count for kind, count in self._moment.position.items() if kind not in UNLISTED}
        self._moment = Moment(self._ledger, self._node)
        self._moment.go_to(position)

    def look(self, tables: Mapping[Family, TableState], agent: int) -> None:
        """The state after a commit by the process `agent`. Raises Violation."""
        self.commits += 1
        if agent != self._agent:
            self._begin(agent)
        try:
            actual = self.view = read(tables)
        except Torn as error:
            raise Violation(f"{self._now()}: {error}") from None
        for kind, part in PARTS.items():
            before = dict(self._moment.position)
            wanted = part(actual)
            while part(self._moment.view) != wanted:
                if self._moment.position[kind] == len(self._ledger.changes[kind]):
                    raise Violation(f"{self._now()}: {self._explain(kind, actual, before)}")
                self._moment.step(kind)

    def _now(self) -> str:
        return f"commit {self.commits}, {time.monotonic() - self.began:.3f} s after the beginning"

    # What to say of a state that no moment allows.

    def _explain(self, kind: str, actual: View, before: Mapping[str, int]) -> str:
        part = PARTS[kind]
        wanted = part(actual)
        moment = Moment(self._ledger, self._node)
        moment.go_to({**before, kind: 0})
        best: tuple[int, int, list[str]] | None = None
        for count in range(len(self._ledger.changes[kind]) + 1):
            if count:
                moment.step(kind)
            if part(moment.view) == wanted:
                last = self._ledger.changes[kind][before[kind] - 1]
                return (
                    f"back in time: the {kind}s are what they were after change {count} of {kind}s "
                    f"({self._tell(kind, count)}); an earlier commit had change {before[kind]} already "
                    f"({last}, {last.moment - self.began:.3f} s)"
                )
            differences = list(_differences(kind, actual, moment.view))
            if count >= before[kind] and (best is None or len(differences) < best[0]):
                best = len(differences), count, differences
        assert best
        size, count, differences = best
        shown = "".join(f"\n    {line}" for line in differences[:20]) + ("\n    …" if size > 20 else "")
        return (
            f"no moment's {kind}s allow this; nearest is change {count} of {len(self._ledger.changes[kind])} "
            f"({self._tell(kind, count)}), from which it differs in:{shown}"
        )

    def _tell(self, kind: str, count: int) -> str:
        if not count:
            return "none yet"
        change: Change = self._ledger.changes[kind][count - 1]
        return f"{change}, {change.moment - self.began:.3f} s"


def compare(actual: View, wanted: View) -> list[str]:
    """The differences, a line each, for people."""
    return list(_differences(ENDPOINT_SLICE, actual, wanted)) + [
        f"rules for ServiceCIDRs of {family.nft}: {actual.dropped[family]} instead of {wanted.dropped[family]}"
        for family in Family
        if actual.dropped[family] != wanted.dropped[family]
    ]


def _differences(kind: str, actual: View, wanted: View) -> Iterator[str]:
    if kind == SERVICE_CIDR:
        yield f"{actual.dropped} instead of {wanted.dropped}"
        return
    for where, keys in actual.shared.items():
        if keys != wanted.shared[where]:
            extra, missing = keys - wanted.shared[where], wanted.shared[where] - keys
            yield f"{where[0].nft} {where[1]}: {_addresses(extra)} too many, {_addresses(missing)} missing"
    if kind == NODE:
        return
    ours, theirs = (actual.ports, wanted.ports) if kind == ENDPOINT_SLICE else (actual.gates(), wanted.gates())
    for key in sorted({*ours, *theirs}, key=describe):
        if ours.get(key) != theirs.get(key):
            yield f"{describe(key)}: {_facts(ours.get(key))} instead of {_facts(theirs.get(key))}"


def _addresses(keys: frozenset[bytes]) -> str:
    texts = [str(ip_address(key[: len(key) // 2] if len(key) in (8, 32) else key)) for key in sorted(keys)]
    return ", ".join(texts) or "none"


def _facts(facts: Any) -> str:
    return "nothing" if facts is None else " ".join(sorted(map(_fact, facts)))


def _fact(fact: Any) -> str:
    if isinstance(fact, str):
        return fact
    words = (part.hex(".", 4) if isinstance(part, bytes) else str(part) for part in fact if part != b"")
    return f"({' '.join(words)})"
