"""Who asks, and what they may do: bearer tokens, client certificates, and rules as ClusterRoles have them."""

from __future__ import annotations

import hmac
from typing import Any

from integration.apiserver.kinds import Kind
from integration.apiserver.status import Object, Refused

ANONYMOUS = "system:anonymous"
PUBLIC = ("/version", "/readyz", "/livez", "/healthz")
"""What even the anonymous may see."""


def who(tokens: dict[str, str], header: str, certificate: dict[str, Any]) -> str:
    """The user's name. Raises Refused(401). `tokens`: token -> user; none at all: everybody is 'admin'.

    `header`: of Authorization. `certificate`: as ssl's getpeercert() gives it; empty when there is none.
    """
    for field in certificate.get("subject", ()):
        for name, value in field:
            if name == "commonName":
                return str(value)
    if not tokens:
        return "admin"
    if not header:
        return ANONYMOUS
    scheme, _, token = header.partition(" ")
    if scheme.lower() == "bearer":
        for known, user in tokens.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                return user
    raise Refused(401, "Unauthorized")


def forbidden(user: str, verb: str, kind: Kind, namespace: str, name: str) -> Refused:
    """As the API server words it."""
    scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    what = f'{kind.qualified} "{name}"' if name else kind.qualified
    why = f'User "{user}" cannot {verb} resource "{kind.plural}" in API group "{kind.group}" {scope}'
    details = ({"name": name} if name else {}) | ({"group": kind.group} if kind.group else {}) | {"kind": kind.plural}
    return Refused(403, f"{what} is forbidden: {why}", details, {"X-Content-Type-Options": "nosniff"})


def forbidden_path(user: str, verb: str, path: str) -> Refused:
    why = f'forbidden: User "{user}" cannot {verb} path "{path}"'
    return Refused(403, why, {}, {"X-Content-Type-Options": "nosniff"})


def allowed(rules: list[Object], verb: str, kind: Kind, name: str) -> bool:
    """Whether one of these rules (the `rules` of a ClusterRole) allows it."""
    return any(
        _has(rule.get("verbs"), verb)
        and _has(rule.get("apiGroups"), kind.group)
        and _has(rule.get("resources"), kind.plural)
        and (not rule.get("resourceNames") or name in rule["resourceNames"])
        for rule in rules
    )


def _has(values: list[str] | None, value: str) -> bool:
    return values is not None and (value in values or "*" in values)
