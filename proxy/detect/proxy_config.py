"""A KubeProxyConfiguration as evidence: the mode that it asks for, and what else bears on it. Pure.

Nothing is validated here that kube-proxy would take: a half-broken file still says a mode.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

import msgspec

from proxy.detect.evidence import ConfiguredMode, Evidence, FeatureGate, IpvsOption, Place, Unreadable
from proxy.detect.versions import GATE
from proxy.detect.yaml_lines import Fault, Value, read_yaml

KIND: Final = "KubeProxyConfiguration"
GROUP: Final = "kubeproxy.config.k8s.io/"

_ZERO: Final = ("", "0", "0s", "0m", "0m0s", "0h0m0s", "false")
_WRONG_NAMES: Final = ("proxymode", "proxy-mode", "proxy_mode", "kubeproxymode")


def read_text(text: str, place: Place, first_line: int = 1) -> list[Evidence]:
    """All KubeProxyConfigurations in a text, and its faults."""
    documents, faults = read_yaml(text, first_line)
    found: list[Evidence] = []
    for document in documents:
        if is_proxy_config(document):
            found += read_config(document, place)
    return found + [unreadable(fault, place) for fault in faults]


def is_proxy_config(document: Value) -> bool:
    """Whether it says that it is one. (A kind that is missing because the text broke off is taken for one.)"""
    return document.text("kind") == KIND or document.text("apiVersion").startswith(GROUP)


def read_config(document: Value, place: Place) -> list[Evidence]:
    """What one KubeProxyConfiguration says; `place` without a line."""
    return [*_mode(document, place), *ipvs_options(document, place), *gates(document.get("featureGates"), place)]


def at(place: Place, value: Value | None) -> Place:
    return msgspec.structs.replace(place, line=value.line) if value is not None else place


def unreadable(fault: Fault, place: Place) -> Unreadable:
    return Unreadable(
        place=msgspec.structs.replace(place, line=fault.line), cause=fault.cause, remedy="correct the syntax"
    )


def _mode(document: Value, place: Place) -> Iterator[Evidence]:
    mode = document.get("mode")
    for key, value in document.fields().items():
        if key.lower() in _WRONG_NAMES or (key.lower() == "mode" and key != "mode"):
            yield Unreadable(
                place=at(place, value),
                cause=f"unknown field {key}: kube-proxy does not read it",
                remedy="write it as mode",
            )
    if mode is not None and isinstance(mode.data, list | dict):
        yield Unreadable(place=at(place, mode), cause="mode is no text", remedy="write one of nftables, iptables")
        return
    text = document.text("mode")
    windows = [name for name in ("networkName", "sourceVip", "rootHnsEndpointName") if document.text("winkernel", name)]
    if not text and windows:
        yield ConfiguredMode(
            place=at(place, document.get("winkernel")),
            sure="likely",
            mode="kernelspace",
            note=f"winkernel.{windows[0]} is set: a Windows node, whose only mode is kernelspace",
        )
        return
    yield ConfiguredMode(place=at(place, mode or document), mode=text)


def ipvs_options(document: Value, place: Place) -> Iterator[IpvsOption]:
    for name, value in document.fields("ipvs").items():
        shown = _shown(value)
        if shown not in _ZERO and (name, shown) != ("syncPeriod", "30s") and (name, shown) != ("minSyncPeriod", "1s"):
            yield IpvsOption(place=at(place, value), name=f"ipvs.{name}", value=shown)


def gates(section: Value | None, place: Place) -> Iterator[Evidence]:
    """The feature gates of a mapping."""
    if section is None or section.data is None:
        return
    if not isinstance(section.data, dict):
        yield Unreadable(
            place=at(place, section), cause="featureGates is no mapping", remedy="write NAME: true or false"
        )
        return
    for name, value in section.data.items():
        yield from gate(name, _shown(value), at(place, value))


def gate(name: str, value: str, place: Place) -> Iterator[Evidence]:
    """One gate, as text; only those that bear on the mode are evidence."""
    if name == GATE:
        if value.lower() in ("true", "false", "t", "f", "1", "0"):
            yield FeatureGate(place=place, name=name, value=value.lower() in ("true", "t", "1"))
        else:
            yield Unreadable(place=place, cause=f"{name} is {value!r}", remedy="write true or false")
    elif difflib.get_close_matches(name.lower(), [GATE.lower()], cutoff=0.85):
        yield Unreadable(
            place=place,
            cause=f"unknown feature gate {name}: kube-proxy exits at its start",
            remedy=f"write it as {GATE}",
        )


def _shown(value: Value) -> str:
    if isinstance(value.data, list):
        return ",".join(_shown(item) for item in value.data)
    if isinstance(value.data, dict):
        return "{...}" if value.data else ""
    return "" if value.data is None else value.text()
