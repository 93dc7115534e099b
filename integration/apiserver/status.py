"""What the API server says when it does not do what was asked: Status objects, as answers and inside a watch."""

from __future__ import annotations

from typing import Any

import msgspec

from integration.apiserver.kinds import Kind

Object = dict[str, Any]
encode = msgspec.json.Encoder().encode

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def status(
    code: int, reason: str, message: str, details: Object | None = None, metadata: dict[str, str] | None = None
) -> bytes:
    """A Status object, as the API server answers with instead of what was asked for."""
    body: Object = {"kind": "Status", "apiVersion": "v1", "metadata": metadata or {}, "status": "Failure"}
    body |= {"message": message, "reason": reason}
    if details is not None:
        body["details"] = details
    return encode(body | {"code": code})


def error_line(code: int, reason: str, message: str, details: Object | None = None) -> bytes:
    """The event that ends a watch."""
    return b'{"type":"ERROR","object":' + status(code, reason, message, details) + b"}\n"


class Refused(Exception):
    """The answer is a Status. `details` as in a Status, `headers` beside the usual ones."""

    def __init__(
        self,
        code: int,
        message: str,
        details: Object | None = None,
        headers: dict[str, str] | None = None,
        *,
        reason: str = "",
        metadata: dict[str, str] | None = None,
    ) -> None:
        self.code, self.message, self.details = code, message, details
        self.reason = reason or REASONS[code]
        self.body = status(code, self.reason, message, details, metadata) + b"\n"
        self.headers = headers or {}
        super().__init__(message)

    @property
    def line(self) -> bytes:
        """The same said in a watch that has begun."""
        return error_line(self.code, self.reason, self.message, self.details)


def unknown_path() -> Refused:
    return Refused(404, "the server could not find the requested resource", {})


def not_found(kind: Kind, name: str) -> Refused:
    return Refused(404, f'{kind.qualified} "{name}" not found', _about(kind, name))


def taken(kind: Kind, name: str) -> Refused:
    message = f'{kind.qualified} "{name}" already exists'
    return Refused(409, message, _about(kind, name), reason="AlreadyExists")


def conflict(kind: Kind, name: str) -> Refused:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}'
    return Refused(409, message, _about(kind, name))


def invalid(kind: Kind, name: str, causes: list[Object]) -> Refused:
    """`causes`: with field, reason and message each. What is wrong with an Event is said without its group."""
    said = [f"{cause['field']}: {cause['message']}" for cause in causes]
    why = _joined(said)
    details = {"name": name, "kind": kind.name, "causes": causes}
    named = kind.name
    if kind.group and kind.name != "Event":
        details = {"name": name, "group": kind.group, "kind": kind.name, "causes": causes}
        named = f"{kind.name}.{kind.group}"
    return Refused(422, f'{named} "{name}" is invalid: {why}', details)


def bad_options(causes: list[tuple[str, str]]) -> Refused:
    """The parameters of a list or watch forbid each other. `causes`: the parameter, and why; or all of the message."""
    listed = []
    for name, why in causes:
        unsupported = why.startswith("Unsupported value")
        reason = "FieldValueNotSupported" if unsupported else "FieldValueForbidden"
        listed.append({"reason": reason, "message": why if unsupported else f"Forbidden: {why}", "field": name})
    said = [f"{cause['field']}: {cause['message']}" for cause in listed]
    details = {"group": "meta.k8s.io", "kind": "ListOptions", "causes": listed}
    return Refused(422, f'ListOptions.meta.k8s.io "" is invalid: {_joined(said)}', details)


def too_large(asked: int, current: int) -> Refused:
    """A version that this server does not have yet."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return Refused(504, message, {"causes": [cause], "retryAfterSeconds": 1}, {"Retry-After": "1"})


def not_synced() -> Refused:
    """The watch cache has no list yet (KEP-4568)."""
    return Refused(429, "storage is (re)initializing", {"retryAfterSeconds": 1}, {"Retry-After": "1"})


def _joined(said: list[str]) -> str:
    return said[0] if len(said) == 1 else f"[{', '.join(said)}]"


def _about(kind: Kind, name: str) -> Object:
    group = {"group": kind.group} if kind.group else {}
    return {"name": name} | group | {"kind": kind.plural}
