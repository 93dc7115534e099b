"""What is wrong with objects, and what of it is news. Pure."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from proxy.services import Name


class Problem(Struct, frozen=True):
    """Something of an object that had to be left out; the rest of the cluster works. For logs and counters.

    is_conflict: it is in order by itself, and another Service, which is older, has what it claims.
    """

    kind: str
    namespace: str
    name: str
    reason: str
    is_conflict: bool = False


class ObjectFaults:
    """`news` collects what was found since the caller last emptied it: each thing once for as long as it lasts, not each
    time its object is seen again. The rest is as it is now:

    known: (kind, name) -> reasons; of what is about a part of a Service, that part stands in the kind's place, in lower
    case. objects: by kind, how many something is wrong with. conflicts: (service key, who lost) -> who has it.
    """

    def __init__(self) -> None:
        self.news: list[Problem] = []
        self.known: dict[tuple[str, Name], tuple[str, ...]] = {}
        self.objects: Counter[str] = Counter()
        self.conflicts: dict[tuple[bytes, Name], Name] = {}
        self._crowded: dict[bytes, tuple[str, Name]] = {}

    def found(self, kind: str, name: Name, *reasons: str) -> None:
        """All that is wrong with the object now, and no more of what was before."""
        if self.known.get((kind, name), ()) == reasons:
            return
        if reasons:
            self.objects[kind] += (kind, name) not in self.known
            self.known[kind, name] = reasons
        else:
            del self.known[kind, name]
            self.objects -= Counter((kind,))  # which leaves no zeros
        self.news += [Problem(kind, *name, reason) for reason in reasons]

    def crowded(self, key: bytes, kind: str, name: Name, port: str, reason: str) -> None:
        """At this service key a port has more endpoints than are used. Once for all of its keys."""
        topic = (f"endpoints of {port!r}", name)
        if self._crowded.get(key) == topic:
            return
        self.fits(key)
        self._crowded[key] = topic
        if topic not in self.known:
            self.known[topic] = (reason,)
            self.news.append(Problem(kind, *name, reason))

    def fits(self, key: bytes) -> None:
        """It has not, or is gone."""
        topic = self._crowded.pop(key, None)
        if topic and topic not in self._crowded.values():
            del self.known[topic]

    def conflict(self, key: bytes, kind: str, loser: Name, holder: Name, reason: str) -> None:
        """`holder` has what `loser` claims."""
        if self.conflicts.get((key, loser)) != holder:
            self.conflicts[key, loser] = holder
            self.news.append(Problem(kind, *loser, reason, is_conflict=True))

    def no_conflict(self, key: bytes, loser: Name) -> None:
        """It does not claim it any more."""
        self.conflicts.pop((key, loser), None)
