"""Everything that objects have ever been, in the order in which the API server got it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from proxy.events import Delete, Put
from proxy.model import KINDS, BadObject, decode

Object = dict[str, Any]
Identity = tuple[str, str, str]
"""kind, namespace, name."""


class Server(Protocol):
    """What takes the objects: integration.apiserver.FakeApi."""

    def put(self, obj: Object) -> int: ...
    def delete(self, kind: str, namespace: str, name: str) -> int: ...


class Change(NamedTuple):
    """What happened to one object. moment: time.monotonic() before the server had it. event: what it means to a proxy;
    an object that cannot be decoded is none."""

    moment: float
    identity: Identity
    event: Put | Delete

    def __str__(self) -> str:
        kind, namespace, name = self.identity
        gone = " gone" if isinstance(self.event, Delete) else ""
        return f"{kind} {namespace + '/' if namespace else ''}{name}{gone}"


class Ledger:
    """Writes down each change, and then lets the server have it. `changes`: by kind; it only grows.

    One thread changes objects; any may read.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.changes: Mapping[str, list[Change]] = {kind: [] for kind in KINDS}
        self.objects: dict[Identity, Object] = {}
        """What there is now, as it was put. Not to be changed in place."""

    def put(self, obj: Object) -> None:
        """Its metadata must have all that a proxy looks at: a namespace if the kind has one, the creationTimestamp."""
        kind, meta = obj["kind"], obj["metadata"]
        identity = kind, meta.get("namespace", ""), meta["name"]
        event: Put | Delete
        try:
            event = Put(decode(kind, json.dumps(obj).encode()))
        except BadObject:
            event = Delete(*identity)
        self._note(identity, event)
        self.objects[identity] = obj
        self._server.put(obj)

    def delete(self, identity: Identity) -> None:
        self._note(identity, Delete(*identity))
        del self.objects[identity]
        self._server.delete(*identity)

    def _note(self, identity: Identity, event: Put | Delete) -> None:
        self.changes[identity[0]].append(Change(time.monotonic(), identity, event))

    def count(self) -> int:
        """All changes so far."""
        return sum(map(len, self.changes.values()))
