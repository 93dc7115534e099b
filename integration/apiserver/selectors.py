"""Label and field selectors: the part of them that can be written with names, '=', '!=', '!' and commas."""

from __future__ import annotations

from collections.abc import Callable

from integration.apiserver.status import Refused
from integration.apiserver.store import Stored

Matches = Callable[[Stored], bool]
_PLACE = {"metadata.namespace": 0, "metadata.name": 1}


def selector(labels: str, fields: str = "", namespace: str = "") -> Matches:
    """Whether an object is meant. Raises Refused(400) for what cannot be read."""
    tests: list[Matches] = []
    for term in filter(None, labels.split(",")):
        name, operator, value = _split(term)
        if "(" in term or not name:
            raise Refused(400, f"unable to parse requirement: {term!r} is not supported by this stand-in")
        if not operator:
            absent, name = name.startswith("!"), name.lstrip("!")
            tests.append(lambda o, name=name, absent=absent: (name in o.labels) != absent)  # type: ignore[misc]
        elif operator == "!=":
            tests.append(lambda o, name=name, value=value: o.labels.get(name) != value)  # type: ignore[misc]
        else:
            tests.append(lambda o, name=name, value=value: o.labels.get(name) == value)  # type: ignore[misc]
    for term in filter(None, fields.split(",")):
        name, operator, value = _split(term)
        if name not in _PLACE:
            raise Refused(400, f"field label not supported: {name}")
        equal, place = operator != "!=", _PLACE[name]
        tests.append(lambda o, p=place, v=value, equal=equal: (o.key[p] == v) == equal)  # type: ignore[misc]
    if namespace:
        tests.append(lambda o: o.key[0] == namespace)
    if not tests:
        return lambda o: True
    return tests[0] if len(tests) == 1 else lambda o: all(test(o) for test in tests)


def named(fields: str) -> str:
    """The one name that a field selector allows; '' for any."""
    for term in fields.split(","):
        name, operator, value = _split(term)
        if name == "metadata.name" and operator in ("=", "=="):
            return value
    return ""


def _split(term: str) -> tuple[str, str, str]:
    for operator in ("!=", "==", "="):
        name, found, value = term.partition(operator)
        if found:
            return name.strip(), operator, value.strip()
    return term.strip(), "", ""
