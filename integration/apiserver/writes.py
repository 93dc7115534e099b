"""Objects created, replaced, patched and deleted by clients. Only Events are held to the API's rules."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from integration.apiserver import event_rules
from integration.apiserver.kinds import EVENT, Target
from integration.apiserver.status import Object, Refused, conflict, invalid, not_found, taken
from integration.apiserver.store import Store, Stored

MERGE = ("application/merge-patch+json", "application/strategic-merge-patch+json")
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of generated names


def read(body: bytes) -> Object:
    try:
        obj = msgspec.json.decode(body)
    except msgspec.DecodeError as e:
        raise Refused(400, f"the object provided is unrecognized: {e}") from None
    if not isinstance(obj, dict):
        raise Refused(400, "the object provided is unrecognized: no object")
    return obj


def create(store: Store, target: Target, body: bytes) -> Stored:
    """Raises Refused when the name is taken, or the object invalid."""
    obj = _named(target, read(body))
    meta = obj["metadata"]
    if not meta.get("name"):
        prefix = meta.get("generateName")
        if not prefix:
            required = {"reason": "FieldValueRequired", "message": "Required value: name or generateName is required"}
            raise invalid(target.kind, "", [required | {"field": "metadata.name"}])
        meta["name"] = prefix + "".join(random.choices(_LETTERS, k=5))
    if target.kind is EVENT:
        if causes := event_rules.wrong_when_created(obj):
            raise invalid(EVENT, meta["name"], causes)
        obj = event_rules.complete(obj)
    with store.lock:
        if _key(target, meta["name"]) in store.objects[target.kind.name]:
            raise taken(target.kind, meta["name"])
        return store.put({"kind": target.kind.name} | obj)


def replace(store: Store, target: Target, body: bytes) -> Stored:
    """Raises Refused when there is none, or when it is not the version that the body names."""
    obj = _named(target, read(body))
    obj["metadata"]["name"] = target.name
    with store.lock:
        old = _find(store, target)
        _same_version(target, obj["metadata"], old)
        if target.subresource == "status":
            obj = old.read() | {"status": obj.get("status", {})}
        elif target.kind is EVENT:
            obj = _changed_event(obj, old)
        elif "status" in (last := old.read()):
            obj = obj | {"status": last["status"]}
        return store.put({"kind": target.kind.name} | obj)


def patch(store: Store, target: Target, body: bytes, content_type: str) -> Stored:
    """A merge patch; a strategic one is taken for one, which is the same but for lists."""
    if content_type.split(";")[0] not in MERGE:
        why = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(MERGE)
        raise Refused(415, why)
    change = read(body)
    with store.lock:
        old = _find(store, target)
        _same_version(target, change.get("metadata") or {}, old)
        obj = _merged(old.read(), change)
        if target.kind is EVENT:
            obj = _changed_event(obj, old)
        return store.put({"kind": target.kind.name} | obj)


def delete(store: Store, target: Target) -> Stored:
    """The object as it was last."""
    with store.lock:
        old = _find(store, target)
        store.delete(target.kind.name, old.key)
        return old


def _named(target: Target, obj: Object) -> Object:
    """The object, in the namespace that the path says."""
    kind, meta = target.kind, dict(obj.get("metadata") or {})
    if obj.get("kind", kind.name) != kind.name or obj.get("apiVersion", kind.api_version) != kind.api_version:
        given = f"{obj.get('apiVersion')}, Kind={obj.get('kind')}"
        raise Refused(400, f"the object is of {given}, and the path of {kind.api_version}, Kind={kind.name}")
    if kind.namespaced and meta.setdefault("namespace", target.namespace) != target.namespace:
        raise Refused(400, "the namespace of the provided object does not match the namespace sent on the request")
    if target.name and meta.get("name", target.name) != target.name:
        given = meta["name"]
        raise Refused(400, f"the name of the object ({given}) does not match the name on the URL ({target.name})")
    return obj | {"metadata": meta}


def _changed_event(obj: Object, old: Stored) -> Object:
    obj = event_rules.complete(obj)
    if causes := event_rules.wrong_when_changed(obj, old.read()):
        raise invalid(EVENT, old.key[1], causes)
    return obj


def _find(store: Store, target: Target) -> Stored:
    old = store.objects[target.kind.name].get(_key(target, target.name))
    if not old:
        raise not_found(target.kind, target.name)
    return old


def _same_version(target: Target, meta: Object, old: Stored) -> None:
    if meta.get("resourceVersion", str(old.version)) != str(old.version):
        raise conflict(target.kind, target.name)


def _key(target: Target, name: str) -> tuple[str, str]:
    return target.namespace if target.kind.namespaced else "", name


def _merged(old: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    merged = dict(old) if isinstance(old, dict) else {}
    for name, value in change.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged
