"""What the API server requires of an Event of events.k8s.io/v1, created or changed (KEP-383)."""

from __future__ import annotations

import re

from integration.apiserver.status import Object

NOTE_LIMIT = 1024  # bytes, as all of these
LIMITS = {"reportingInstance": 128, "action": 128, "reason": 128, "note": NOTE_LIMIT}
FIELDS = (
    "metadata", "eventTime", "series", "reportingController", "reportingInstance", "action", "reason", "regarding",
    "related", "note", "type", "deprecatedSource", "deprecatedFirstTimestamp", "deprecatedLastTimestamp",
    "deprecatedCount",
)  # fmt: skip
_UNCHANGING = {
    "regarding": "involvedObject", "reason": "reason", "note": "message", "type": "type", "eventTime": "eventTime",
    "action": "action", "related": "related", "reportingController": "reportingController",
    "reportingInstance": "reportingInstance",
}  # fmt: skip
_DEPRECATED = {"deprecatedFirstTimestamp": "firstTimestamp", "deprecatedLastTimestamp": "lastTimestamp"}
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def complete(event: Object) -> Object:
    """With the fields in the API's order, and those that it always shows."""
    always: Object = {"deprecatedSource": {}, "deprecatedFirstTimestamp": None, "deprecatedLastTimestamp": None}
    event = always | event
    return {name: event[name] for name in FIELDS if name in event and event[name] != ""}


def wrong_when_created(event: Object) -> list[Object]:
    """What is wrong with a new Event, as causes of a Status."""
    causes = _legacy(event)
    if not _SUBDOMAIN.fullmatch(event["metadata"]["name"]) or len(event["metadata"]["name"]) > 253:
        causes.append(_invalid("metadata.name", "a lowercase RFC 1123 subdomain is needed", event["metadata"]["name"]))
    causes += _series(event)
    if not event.get("eventTime"):
        causes.append(_required("eventTime"))
    if event.get("type") not in ("Normal", "Warning"):
        causes.append(_invalid("type", f"has invalid value: {event.get('type', '')}"))
    causes += [_invalid(shown, "needs to be unset") for name, shown in _DEPRECATED.items() if event.get(name)]
    if event.get("deprecatedCount"):
        causes.append(_invalid("count", "needs to be unset"))
    if any((event.get("deprecatedSource") or {}).values()):
        causes.append(_invalid("source", "needs to be unset"))
    return causes


def wrong_when_changed(new: Object, old: Object) -> list[Object]:
    """What is wrong with a changed Event: only its series may change."""
    causes = _legacy(new)
    if new.get("series") != old.get("series"):
        causes += _series(new)
    for name, shown in _UNCHANGING.items():
        if new.get(name) != old.get(name):
            causes.append(_invalid(shown, "field is immutable", new.get(name)))
    return causes


def _legacy(event: Object) -> list[Object]:
    causes: list[Object] = []
    about = (event.get("regarding") or {}).get("namespace", "")
    namespace = event["metadata"].get("namespace", "")
    if not event.get("eventTime"):
        if (about or "default") != (namespace or "default"):
            causes.append(_invalid("involvedObject.namespace", "does not match event.namespace", about))
        return causes
    if not about and namespace not in ("default", "kube-system"):
        causes.append(_invalid("involvedObject.namespace", "does not match event.namespace", about))
    controller = event.get("reportingController") or ""
    if not controller:
        causes.append(_required("reportingController"))
    if not _QUALIFIED.fullmatch(controller):
        causes.append(_invalid("reportingController", "name part must be a qualified name", controller))
    for name, limit in LIMITS.items():
        value = event.get(name) or ""
        if not value and name != "note":
            causes.append(_required(name))
        if len(value.encode()) > limit:
            shown = "message" if name == "note" else name
            causes.append(_invalid(shown, f"can have at most {limit} characters"))
    return causes


def _series(event: Object) -> list[Object]:
    series = event.get("series")
    if not series:
        return []
    causes = []
    if series.get("count", 0) < 2:
        causes.append(_invalid("series.count", "should be at least 2"))
    if not series.get("lastObservedTime"):
        causes.append(_required("series.lastObservedTime"))
    return causes


def _required(field: str) -> Object:
    return {"reason": "FieldValueRequired", "message": "Required value", "field": field}


def _invalid(field: str, why: str, value: object = "") -> Object:
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return {"reason": "FieldValueInvalid", "message": f"Invalid value: {shown}: {why}", "field": field}
