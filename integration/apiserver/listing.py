"""Lists: from a cache or from the store, whole or in pages."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

from integration.apiserver.cache import Cache, in_order
from integration.apiserver.kinds import Kind
from integration.apiserver.selectors import Matches
from integration.apiserver.status import Refused, bad_options, too_large
from integration.apiserver.store import Key, Store, Stored

EXPIRED = "The resourceVersion for the provided list is too old."
EXPIRED_PAGE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


def check(query: dict[str, str]) -> None:
    """Raise Refused for parameters of a list that forbid each other."""
    match, causes = query.get("resourceVersionMatch", ""), []
    if match and not query.get("resourceVersion"):
        causes.append(("resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"))
    if match and query.get("continue"):
        causes.append(("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided"))
    if match == "Exact" and query.get("resourceVersion") == "0":
        why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        causes.append(("resourceVersionMatch", why))
    if "sendInitialEvents" in query:
        causes.append(("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if causes:
        raise bad_options(causes)


def answer(kind: Kind, cache: Cache, store: Store, query: dict[str, str], matches: Matches) -> bytes:
    """The list that was asked for. The store's lock is held while its objects are looked up, and no longer."""
    version = asked_version(query)
    limit = number(query, "limit")
    with store.lock:
        start: Key | None = None
        if query.get("continue"):
            start, listed = _read_token(query["continue"])
            version = store.version if listed < 0 else listed
            if version < store.compacted:
                raise Refused(410, EXPIRED_PAGE, metadata={"continue": _token(start, -1)})
            objects = in_order(store.at(kind.name, version))
        elif query.get("resourceVersion", "") in ("", "0"):
            if query.get("resourceVersion") == "0":  # any version will do; the cache answers in one piece
                objects, version, limit = cache.ordered(), cache.version, 0
            else:
                objects, version = in_order(store.objects[kind.name].values()), store.version
        elif query.get("resourceVersionMatch") == "Exact" or (limit and "resourceVersionMatch" not in query):
            if version > store.version:
                raise too_large(version, store.version)
            if version < store.compacted:
                raise Refused(410, EXPIRED)
            objects = in_order(store.at(kind.name, version))
        else:
            objects, version = cache.ordered(), cache.version
    chosen = [o for o in objects if (start is None or o.key > start) and matches(o)]
    page = ""
    if limit and len(chosen) > limit:
        selected = query.get("labelSelector") or query.get("fieldSelector")
        left = "" if selected else f',"remainingItemCount":{len(chosen) - limit}'
        chosen = chosen[:limit]
        page = f',"continue":"{_token(chosen[-1].key, version)}"{left}'
    return _body(kind, version, page, chosen)


def asked_version(query: dict[str, str]) -> int:
    """0: none, or '0'."""
    return number(query, "resourceVersion")


def number(query: dict[str, str], name: str) -> int:
    """A parameter that is one; 0 when it is not there. Raises Refused."""
    text = query.get(name) or "0"
    if not text.isdecimal():
        raise Refused(400, f'{name}: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text)


def seconds(query: dict[str, str], otherwise: float) -> float:
    """How long a watch is to last. Shorter ones than a second are for tests; a real server takes whole numbers."""
    try:
        return float(query.get("timeoutSeconds") or "0") or otherwise
    except ValueError:
        raise Refused(400, f'timeoutSeconds: Invalid value: "{query["timeoutSeconds"]}"') from None


def _body(kind: Kind, version: int, page: str, objects: Iterable[Stored]) -> bytes:
    head = f'{{"kind":"{kind.name}List","apiVersion":"{kind.api_version}"'
    head += f',"metadata":{{"resourceVersion":"{version}"{page}}},"items":['
    texts = b",{".join([o.text for o in objects])
    return head.encode() + (b"{" + texts if texts else b"") + b"]}\n"


def _token(key: Key, version: int) -> str:
    start = "/".join(filter(None, key)) + "\0"
    raw = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": "/" + start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(raw.encode()).decode().rstrip("=")


def _read_token(token: str) -> tuple[Key, int]:
    try:
        data = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, _, name = data["start"].strip("/\0").rpartition("/")
        return (namespace, name), int(data["rv"])
    except (ValueError, TypeError, KeyError):
        why = "invalid character 'i' looking for beginning of value"
        raise Refused(400, f"invalid continue token: continue key is not valid: {why}") from None
