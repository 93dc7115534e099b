"""What belongs to the agent's thread, seen from another one: the only place where that is done.

Nothing is copied ahead and the agent is not asked: Services, slices and service ports are never changed, only replaced, and
each look takes what a dict holds at that moment in one step of the interpreter. Two looks may be of two moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from proxy.agent import Agent
from proxy.services import Name, ServiceInfo
from proxy.slices import SliceInfo
from proxy.state import State
from proxy.status.report import Rejected
from rules.elements import ServicePort, describe_key, family_of
from rules.refusals import Aside

T = TypeVar("T")

_TRIES: Final = 20


def services(state: State) -> list[ServiceInfo]:
    """All."""
    return list(state._services.values())


def slices_of(state: State, service: Name) -> list[SliceInfo]:
    return list(state._slices.get(service, {}).values())


def slices(state: State) -> Iterator[SliceInfo]:
    """All."""
    for of_service in list(state._slices.values()):
        yield from list(of_service.values())


class Watcher(Protocol):
    """What is needed of proxy.watch.Watcher."""

    kind: str
    mode: str
    heard_at: float
    failures: int
    relists: int
    left_out: dict[Name, str]


def rejected(state: State, watchers: Sequence[Watcher] = ()) -> list[Rejected]:
    """What is left out now, and why, in the order of names."""
    faults = _whole(lambda: list(state.faults.known.items()))
    conflicts = _whole(lambda: list(state.faults.conflicts.items()))
    found = [
        # An object's own faults are by its kind, others by what they are about.
        Rejected(kind=kind if kind[:1].isupper() else "Service", namespace=name[0], name=name[1], reason=reason)
        for (kind, name), reasons in faults
        for reason in reasons
    ]
    for (key, loser), holder in conflicts:
        reason = f"{describe_key(key)} belongs to Service {'/'.join(holder)}, which is older"
        found.append(Rejected(kind="Service", namespace=loser[0], name=loser[1], reason=reason))
    for watcher in watchers:
        for (namespace, name), reason in _whole(lambda watcher=watcher: list(watcher.left_out.items())):  # type: ignore[misc]
            found.append(Rejected(kind=watcher.kind, namespace=namespace, name=name, reason=reason))
    return sorted(found, key=lambda one: (one.namespace, one.name, one.kind, one.reason))


def rejected_count(state: State, watchers: Sequence[Watcher] = ()) -> int:
    """How many that are."""
    faults = sum(map(len, list(state.faults.known.values())))
    return faults + len(state.faults.conflicts) + sum(len(watcher.left_out) for watcher in watchers)


def holder_of(state: State, key: bytes) -> Name | None:
    """Which Service has this address, protocol and port."""
    claim = state._claims.holder(key)
    return claim.service.name if claim else None


def programmed(agent: Agent, key: bytes) -> ServicePort | None:
    """What the kernel holds of it; None: nothing."""
    table = agent.tables.programmed.get(family_of(key))
    entry = table.entries.get(key) if table else None
    return entry.port if entry else None


def refused(agent: Agent) -> list[Aside]:
    """Service ports that the kernel does not take."""
    return [aside for aside in list(agent.refusals.aside.values()) if aside.failure]


def waiting(agent: Agent) -> int:
    """How many events the agent has not taken yet."""
    return len(agent.inbox._events)


def _whole(read: Callable[[], T]) -> T:
    """A list of pairs is made step by step: should the dict grow meanwhile, again."""
    for _ in range(_TRIES):
        try:
            return read()
        except RuntimeError:
            continue
    return read()
