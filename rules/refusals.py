"""Service ports that the kernel refuses: found, left out, tried again. Pure: transactions and time come from outside.

One object that the kernel does not take must not keep the others from being programmed, and it must not be tried all
the time. `rules.judgement` says which refusals are of this kind.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from rules.elements import ServicePort
from rules.errors import Failure, TransactionError
from rules.judgement import Action, decisive, judge, service_key_of

Ports = Mapping[bytes, ServicePort | None]
"""By service key; None: gone."""

TRIES: Final = 32
"""How many transactions may be refused in one round of finding out what is refused: each takes 5 to 30 ms."""

NAMED_AT_ONCE: Final = 8
"""So many times the rest is tried as a whole when the kernel has said what it refuses. Then by halves, too: of a map
that is full, the kernel names one element after the other."""

FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0
"""Seconds until a refused service port is tried again, doubling each time. No less than one second for each that is
left out: however many there are, on average one is tried in a second."""


@dataclass
class Settled:
    """What became of changes.

    done: what the kernel holds now; what is not in it is as it was. refused: why; not in `done`, too, if even taking it
    away was refused. undecided: it took too many tries. stopped: nothing more could be done, not even for `left`.
    errors: of all refused tries.
    """

    done: dict[bytes, ServicePort | None] = field(default_factory=dict)
    refused: dict[bytes, Failure] = field(default_factory=dict)
    undecided: set[bytes] = field(default_factory=set)
    left: set[bytes] = field(default_factory=set)
    stopped: TransactionError | None = None
    errors: list[TransactionError] = field(default_factory=list)


Attempt = Callable[[Ports], TransactionError | None]
"""Make these changes in one transaction, and whatever else is to be done. Returns what the kernel has against it."""


def settle(
    changes: Ports, attempt: Attempt, suspects: Ports | None = None, *, fresh: bool = False, tries: int = TRIES
) -> Settled:
    """Make these changes but for those that the kernel refuses. A service port that is refused is taken away.

    suspects: those that were refused before; they come last, when the others are safe. fresh: see `judge`.
    """
    found = Settled()
    ports = {**changes, **(suspects or {})}
    work = [list(suspects)] if suspects else []
    work.append(list(changes))
    is_rest_done = False  # what belongs to no service port
    while work:
        keys = work.pop()
        if tries <= 0:
            found.undecided.update(keys)
            continue
        error = attempt({key: ports[key] for key in keys})
        if error is None:
            found.done.update((key, ports[key]) for key in keys)
            is_rest_done = True
            continue
        tries -= 1
        found.errors.append(error)
        if not keys or judge(error, fresh=fresh)[0] is not Action.LEAVE_OUT:
            found.stopped = error
            found.left.update(keys, *work)
            break
        blamed = _named(error, keys, fresh)
        if not blamed and is_rest_done and len(keys) == 1:
            blamed = {keys[0]: decisive(error)}
        if blamed:
            for key, failure in blamed.items():
                found.refused.setdefault(key, failure)
            keys = [key for key in keys if key not in blamed or ports[key]]
            ports.update(dict.fromkeys(blamed))
        if blamed and (len(keys) < 2 or len(found.errors) <= NAMED_AT_ONCE):
            work.append(keys)
        elif blamed or is_rest_done:
            half = len(keys) // 2
            work += [keys[half:], keys[:half]]
        else:
            work += [keys, []]
    return found


def _named(error: TransactionError, keys: list[bytes], fresh: bool) -> dict[bytes, Failure]:
    """Which of these the kernel refuses, as far as it says so."""
    named: dict[bytes, Failure] = {}
    for failure in error.failures:
        key = service_key_of(failure.operation)
        if key is not None and judge(TransactionError((failure,)), fresh=fresh)[0] is Action.LEAVE_OUT:
            named.setdefault(key, failure)
    return {key: named[key] for key in keys if key in named}


def settle_as_one(changes: Ports, rehearse: Attempt, *, tries: int = TRIES) -> Settled:
    """The same where all has to be one transaction. rehearse: says what the kernel has against all of this, and does
    nothing. If this does not say `stopped`, the kernel takes `done` as a whole."""
    good: dict[bytes, ServicePort | None] = {}

    def attempt(part: Ports) -> TransactionError | None:
        error = rehearse({**good, **part})
        if error is None:
            good.update(part)
        return error

    return settle(changes, attempt, fresh=True, tries=tries)


@dataclass
class Aside:
    """What is left out. port: as it is wanted now, None: to be taken away. failure: None: it was not tried by
    itself."""

    key: bytes
    port: ServicePort | None
    failure: Failure | None = None
    wait: float = 0.0
    tried_at: float = 0.0
    retry_at: float = 0.0


class News(Struct, frozen=True):
    """refused: left out from now on. taken: not any more."""

    refused: list[Aside]
    taken: list[Aside]


class Refusals:
    """The service ports that are left out. Before a transaction: `divide`, or `without` where all is made anew; after
    it: `note`. Times are seconds of any one clock.

    aside: by service key; not to be changed. total: how many were ever refused. errors: refused transactions by the
    name of their errno.
    """

    def __init__(self) -> None:
        self.total = 0
        self.errors: Counter[str] = Counter()
        self.aside: dict[bytes, Aside] = {}

    def __len__(self) -> int:
        """How many are left out now because they were refused."""
        return sum(aside.failure is not None for aside in self.aside.values())

    @property
    def retry_at(self) -> float | None:
        """When some of them are to be tried again; None: there are none."""
        return min((aside.retry_at for aside in self.aside.values()), default=None)

    def divide(self, changed: Ports, now: float) -> tuple[Ports, Ports]:
        """For `settle`: the changes but for what is left out, and the suspects, which are to be tried again now."""
        if not self.aside:
            return changed, {}
        first = {key: port for key, port in changed.items() if not self._is_aside(key, port)}
        due = [aside for key, aside in self.aside.items() if aside.retry_at <= now and key not in first]
        due.sort(key=lambda aside: aside.wait)
        return first, {aside.key: aside.port for aside in due}

    def without(self, everything: Ports) -> dict[bytes, ServicePort | None]:
        """All but those that are left out: they will not be in tables that are made of this."""
        for key in [key for key, aside in self.aside.items() if not aside.failure or not everything.get(key)]:
            del self.aside[key]
        return {key: port for key, port in everything.items() if not self._is_aside(key, port)}

    def _is_aside(self, key: bytes, port: ServicePort | None) -> bool:
        """If so, takes down what is wanted of it now."""
        aside = self.aside.get(key)
        if aside is None or port is None:
            return False
        if port != aside.port:  # it may be mended: to be tried soon, but not each time that it changes
            aside.port = port
            aside.retry_at = min(aside.retry_at, aside.tried_at + FIRST_WAIT)
        return True

    def note(self, settled: Settled, changes: Ports, now: float) -> News:
        """What became of changes and suspects; changes: both."""
        for error in settled.errors:
            self.errors[errno.errorcode.get(decisive(error).errno, "?")] += 1
        news = News([], [])
        for key, port in settled.done.items() if self.aside else ():
            if key not in settled.refused and (aside := self.aside.pop(key, None)) and aside.failure and port:
                news.taken.append(aside)
        if not settled.refused and not settled.undecided:
            return news
        touched = [key for key in changes if key in settled.refused or key in settled.undecided]
        for key in touched:
            aside = self.aside.setdefault(key, Aside(key, None))
            aside.port, aside.tried_at = changes[key], now
            if key in settled.refused:
                if not aside.failure:
                    news.refused.append(aside)
                aside.failure = settled.refused[key]
                aside.wait = min(2 * aside.wait, LONGEST_WAIT) or FIRST_WAIT
        self.total += len(news.refused)
        crowd = len(self) * FIRST_WAIT
        for aside in map(self.aside.__getitem__, touched):
            aside.retry_at = now + (max(aside.wait, crowd) if aside.failure else FIRST_WAIT)
        return news
