"""Agents with a fault each, which integration.chaos must find out: python -m tests.chaos_mutants NAME run …"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from integration.chaos.agent import hurry
from proxy import cli
from proxy.events import Delete, Event, Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, SERVICE
from proxy.reading import Item, SliceReading
from proxy.resources import ANY
from proxy.slices import Condition
from proxy.watch import Watcher
from proxy.watch_stream import Stream

Filter = Callable[[Event], Iterable[Event]]
PAUSE = 0.02  # long enough for a commit in between


def half_a_list(event: Event) -> Iterable[Event]:
    """A list that broke off is taken for all there is."""
    if isinstance(event, Replace) and event.kind == SERVICE:
        event = Replace(event.kind, event.objects[: len(event.objects) // 2])
    yield event


class HalfALaterList:
    """The same, but never with the first one."""

    def __init__(self) -> None:
        self._has_one = False

    def __call__(self, event: Event) -> Iterable[Event]:
        if isinstance(event, Replace) and event.kind == ENDPOINT_SLICE:
            if self._has_one:
                event = Replace(event.kind, event.objects[: len(event.objects) // 2])
            self._has_one = True
        yield event


def list_that_fills(event: Event) -> Iterable[Event]:
    """A new list begins with nothing, and then comes bit by bit."""
    if isinstance(event, Replace) and event.kind == SERVICE:
        yield Replace(event.kind, ())
        time.sleep(PAUSE)
        yield from map(Put, event.objects)
    else:
        yield event


def deaf_to_deletes(event: Event) -> Iterable[Event]:
    if not (isinstance(event, Delete) and event.kind == SERVICE):
        yield event


class DeafToWhatAListLacks:
    """All slices that were not deleted by an event of their own are kept."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Item] = {}

    def __call__(self, event: Event) -> Iterable[Event]:
        match event:
            case Replace(kind, objects) if kind == ENDPOINT_SLICE:
                self._kept.update({obj.name: obj for obj in objects if isinstance(obj, SliceReading)})
                yield Replace(kind, list(self._kept.values()))
                return
            case Put(SliceReading() as obj):
                self._kept[obj.name] = obj
            case Delete(kind, namespace, name) if kind == ENDPOINT_SLICE:
                self._kept.pop((namespace, name), None)
        yield event


class EachTwentiethLost:
    """Of the changes of slices."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, event: Event) -> Iterable[Event]:
        if isinstance(event, Put) and isinstance(event.obj, SliceReading):
            self._count += 1
            if self._count % 20 == 0:
                return
        yield event


class OldList:
    """When a new list comes, the one before it comes first once more."""

    def __init__(self) -> None:
        self._before: Event | None = None

    def __call__(self, event: Event) -> Iterable[Event]:
        if isinstance(event, Replace) and event.kind == SERVICE:
            if self._before:
                yield self._before
                time.sleep(PAUSE)
            self._before = event
        yield event


def deaf_to_conditions(event: Event) -> Iterable[Event]:
    match event:
        case Put(SliceReading(info=info) as obj) if info:
            usable = int(Condition.READY | Condition.SERVING)
            endpoints = tuple(msgspec.structs.replace(each, conditions=usable) for each in info.endpoints)
            yield Put(msgspec.structs.replace(obj, info=msgspec.structs.replace(info, endpoints=endpoints)))
        case _:
            yield event


class Mutant(NamedTuple):
    """install: makes the fault. provoked_by: what an API server must do for it to matter (see Faults), every so many
    seconds. seed: an odd one where two servers are needed."""

    install: Callable[[], None]
    provoked_by: str = "forget_a_while"
    every: float = 1.0
    seed: int = 6


def filtering(mutate: Filter) -> Mutant:
    """Events are changed on their way to the agent."""
    put = Inbox.put

    def mutated(inbox: Inbox, *events: Event) -> None:
        for event in events:
            for each in mutate(event):
                put(inbox, each)

    return Mutant(lambda: setattr(Inbox, "put", mutated))


MUTANTS: dict[str, Mutant] = {
    "half a list": filtering(half_a_list),
    "half a later list": filtering(HalfALaterList()),
    "a list that fills": filtering(list_that_fills),
    "deaf to DELETED": filtering(deaf_to_deletes),
    "deaf to what a new list lacks": filtering(DeafToWhatAListLacks()),
    "events lost": filtering(EachTwentiethLost()),
    "back in time": filtering(OldList()),
    "deaf to conditions": filtering(deaf_to_conditions),
    "takes any list": Mutant(lambda: setattr(Watcher, "_wanted", lambda self, first: ANY), "lag", every=1.5, seed=7),
    "takes events again": Mutant(lambda: setattr(Stream, "_moves_on", _take_version), "repeat", every=0.3),
}


def _take_version(stream: Stream, version: str) -> bool:
    stream.version = version or stream.version
    stream.heard = True
    return True


if __name__ == "__main__":
    hurry()
    MUTANTS[sys.argv.pop(1)].install()
    sys.exit(cli.main())
