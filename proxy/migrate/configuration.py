"""What of a configuration can be used: a field that cannot is left out and told, and the others count. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from proxy import config_values as values
from proxy.config import parse_config
from proxy.config_fields import FIELDS, SECTIONS
from proxy.config_file import API_VERSION, KIND, Leaves
from proxy.errors import UserError
from proxy.migrate.present import put
from proxy.unread import Unread

_REMEDY: Final = "correct it: a kube-proxy that is started anew with it would end"


def usable(document: Mapping[str, Any], source: str) -> tuple[dict[str, Any], list[Unread]]:
    """What proxy.config.parse_config takes of a KubeProxyConfiguration, and why the rest is of no use. The mode stays as it
    is. Raises nothing."""
    leaves = Leaves(dict(document), FIELDS, SECTIONS)
    good: dict[str, Any] = {}
    unread: list[Unread] = []
    for name, raw in leaves.found:
        try:
            FIELDS[name].parse(raw)
        except values.BadValue as error:
            unread.append(Unread(f"{source}: {name}", f"it is {values.show(raw)}: {error}", _REMEDY))
        else:
            good[name] = raw
    found = _nested(good)
    try:
        parse_config(msgspec.json.encode(found), source)
    except UserError as error:  # fields that contradict each other
        unread.append(Unread(source, error.cause, _REMEDY))
        found = _nested({name: raw for name, raw in good.items() if name not in error.cause})
    return found, unread


def _nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
    for name, raw in fields.items():
        put(found, name, raw)
    return found
