"""An Event about this Node, as the API takes it (events.k8s.io/v1): names, limits, JSON. Pure.

The limits are the API server's; what exceeds them is cut, because it would refuse the whole Event.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct

NAMESPACE: Final = "default"  # where the API server wants Events about objects that have no namespace
PATH: Final = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
# Not kube-proxy's own name: who moves a cluster from one to the other, node by node, sees which of them speaks.
CONTROLLER: Final = "kube-proxy-nft"

NOTE_BYTES: Final = 1024
WORD_BYTES: Final = 128
INSTANCE_BYTES: Final = 128
NAME_BYTES: Final = 253

_encode = msgspec.json.Encoder().encode


class Occurrence(Struct, frozen=True):
    """Something that happened. `key`: see EventRecorder.record. `time`: nanoseconds since 1970."""

    reason: str
    note: str
    warning: bool
    action: str
    key: str
    time: int


def occurrence(reason: str, note: str, *, warning: bool, action: str, key: str, time: int) -> Occurrence:
    """One that fits into an Event. An empty action is the reason again: the API wants one."""
    reason = cut(reason, WORD_BYTES)
    return Occurrence(reason, cut(note, NOTE_BYTES), warning, cut(action, WORD_BYTES) or reason, key, time)


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8, between two characters; an ellipsis says that there was more."""
    data = text.encode(errors="replace")  # surrogates, from file names and the like, are no characters
    if len(data) > limit:
        data = data[: limit - 3].decode(errors="ignore").encode() + "…".encode()
    return data.decode()


def event_name(node: str, suffix: str) -> str:
    """The name of an Event object: "NODE.suffix", as everywhere in Kubernetes. `suffix`: lower-case letters, digits."""
    return node[: NAME_BYTES - 1 - len(suffix)].rstrip("-.") + "." + suffix


def told_once(node: str, key: str) -> str:
    """The name of the Event that tells of `key`: always the same."""
    return event_name(node, hashlib.sha256(key.encode(errors="replace")).hexdigest()[:16])


def instance(node: str) -> str:
    """reportingInstance: which of all the agents."""
    whole = f"{CONTROLLER}-{node}"
    if len(whole) <= INSTANCE_BYTES:
        return whole
    return f"{whole[: INSTANCE_BYTES - 9]}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"


def event_body(what: Occurrence, node: str, uid: str, name: str, count: int, last: int) -> bytes:
    """The object to POST. `uid`: the Node's, '' when unknown. `count`: of occurrences, the last one at `last`."""
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "eventTime": micro_time(what.time),
        "reportingController": CONTROLLER,
        "reportingInstance": instance(node),
        "action": what.action,
        "reason": what.reason,
        # `kubectl describe node` asks for Events with the Node's uid, and for those with its name in that place.
        "regarding": {"kind": "Node", "name": node, "uid": uid or node, "apiVersion": "v1"},
        "note": what.note,
        "type": "Warning" if what.warning else "Normal",
    }
    return _encode(event | (_series(count, last) if count > 1 else {}))


def series_patch(count: int, last: int) -> bytes:
    """The merge patch that tells of more occurrences of the same: two or more in all, the last one at `last`."""
    return _encode(_series(count, last))


def _series(count: int, last: int) -> dict[str, object]:
    return {"series": {"count": count, "lastObservedTime": micro_time(last)}}


def micro_time(time: int) -> str:
    """RFC 3339 with microseconds, the API's MicroTime. `time`: nanoseconds since 1970."""
    seconds, rest = divmod(time, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06}Z"
