"""The effective configuration as a KubeProxyConfiguration again: every field that this proxy keeps, defaults filled in."""

from __future__ import annotations

import json
from typing import Any, Final

import yaml

from proxy.config import API_VERSION, KIND, ClusterCIDR, Config, HostPort, NodePortAddresses
from proxy.config_fields import FIELDS, attribute
from proxy.durations import show_duration

FORMATS: Final = ("yaml", "json")


def effective(config: Config) -> dict[str, Any]:
    """Plain data under the API's names. Loaded again, it gives the same configuration, save for healthz or metrics that
    are not served: a file cannot say that. Fields that this proxy does not keep are not in it."""
    found: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
    for name, value in fields(config).items():
        *sections, last = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return found


def fields(config: Config) -> dict[str, Any]:
    """The same by dotted paths, without apiVersion and kind."""
    found: dict[str, Any] = {}
    for name, field in FIELDS.items():
        if field.stored or name == "mode":
            value: Any = config
            for part in attribute(name).split("."):
                value = getattr(value, part)
            found[name] = _plain(value)
    return found


def show(config: Config, format: str = "yaml") -> str:
    """As text, in one of FORMATS."""
    data = effective(config)
    if format == "json":
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _plain(value: object) -> object:
    match value:
        case None:
            return ""
        case float():
            return show_duration(value)
        case HostPort(host, port):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case ClusterCIDR(v4=v4, v6=v6):
            return ",".join(str(cidr) for cidr in (v4, v6) if cidr)
        case NodePortAddresses(primary=primary, cidrs=cidrs):
            return ["primary"] * primary + [str(cidr) for cidr in cidrs]
        case tuple():
            return ",".join(map(str, value))
        case _:
            return value
