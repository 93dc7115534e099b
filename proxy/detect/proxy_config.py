"""A KubeProxyConfiguration as evidence: the mode that it asks for, and what else bears on it. Pure.

Nothing is validated here that kube-proxy would take: a half-broken file still says a mode.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from proxy.detect.configured import set_aside
from proxy.detect.evidence import ConfiguredMode, Evidence, FeatureGate, IpvsOption, Mode, Place, Unreadable
from proxy.detect.versions import GATE
from proxy.detect.yaml_lines import Fault, Value, field_name, read_yaml

KIND: Final = "KubeProxyConfiguration"
GROUP: Final = "kubeproxy.config.k8s.io/"
API_VERSION: Final = GROUP + "v1alpha1"
WINDOWS: Final = "a Windows node, whose only mode is kernelspace"

_FIRST: Final = "kube-proxy reads the first document of its file only"
_LONGEST: Final = 100  # characters of a value that are shown
_ZERO: Final = ("", "0", "0s", "0m", "0m0s", "0h0m0s", "false")
_DEFAULT: Final = (("syncPeriod", "30s"), ("minSyncPeriod", "1s"))
_OWN_FIELDS: Final = frozenset({
    "clusterCIDR", "conntrack", "detectLocal", "detectLocalMode", "featureGates", "iptables", "ipvs", "mode", "nftables",
    "nodePortAddresses", "oomScoreAdj", "portRange", "winkernel",
})  # fmt: skip
"""Fields by which a mapping without a kind is taken for a KubeProxyConfiguration."""
_MEANT: Final = {
    "mode": "mode",
    "proxymode": "mode",
    "kubeproxymode": "mode",
    "ipvs": "ipvs",
    "kubeproxyipvsconfiguration": "ipvs",
    "featuregate": "featureGates",
    "featuregates": "featureGates",
}
"""What somebody means who writes these letters as a field's name."""
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")  # strconv.ParseBool
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")


def is_proxy_config(document: Value) -> bool:
    """Whether it says that it is one. (A kind that is missing because the text broke off is taken for one.)"""
    return document.text("kind") == KIND or document.text("apiVersion").startswith(GROUP)


def looks_like_one(document: Value) -> bool:
    """Whether it could be one that does not say so: the text broke off before its kind, or it was forgotten."""
    return document.get("kind") is None and not _OWN_FIELDS.isdisjoint(document.fields())


def read_text(
    text: str,
    place: Place,
    first_line: int = 1,
    *,
    one_line: bool = False,
    expected: bool = False,
    first_counts: bool = False,
) -> list[Evidence]:
    """All KubeProxyConfigurations in a text, and its faults. expected: one is meant to be in it. first_counts: where it
    begins with one, a kube-proxy reads that one only."""
    documents, faults = read_yaml(text, first_line, one_line=one_line)
    found: list[Evidence] = []
    for number, document in enumerate(documents):
        if is_proxy_config(document) or (expected and looks_like_one(document)):
            evidence = read_config(document, place)
            found += (
                set_aside(evidence, _FIRST) if first_counts and number and is_proxy_config(documents[0]) else evidence
            )
    return found + [unreadable(fault, place) for fault in faults]


def read_as_kube_proxy(text: str, place: Place, first_line: int = 1, *, one_line: bool = False) -> list[Evidence]:
    """What kube-proxy sees in the text that its --config names: the first document, and nothing else."""
    documents, faults = read_yaml(text, first_line, one_line=one_line)
    found: list[Evidence] = []
    for document in documents[:1]:
        if is_proxy_config(document) or looks_like_one(document):
            found += read_config(document, place)
    if not found and not faults:
        remedy = "see what --config of kube-proxy names"
        found.append(Unreadable(place=place, cause=f"it does not begin with a {KIND}", remedy=remedy))
    for document in documents[1:]:
        if is_proxy_config(document):
            found += set_aside(read_config(document, place), _FIRST)
    return found + [unreadable(fault, place) for fault in faults]


def read_config(document: Value, place: Place) -> list[Evidence]:
    """What one KubeProxyConfiguration says; `place` without a line."""
    return [*read_settings(document, place), *_header(document, place)]


def read_settings(document: Value, place: Place) -> list[Evidence]:
    """The same for a part of one, which does not have to say that it is one."""
    return [
        *_mode(document, place),
        *_misnamed(document, place),
        *ipvs_options(document.get("ipvs"), place),
        *gates(document.get("featureGates"), place),
    ]


def at(place: Place, value: Value | None) -> Place:
    return msgspec.structs.replace(place, line=value.line) if value is not None and value.line else place


def unreadable(fault: Fault, place: Place) -> Unreadable:
    where = msgspec.structs.replace(place, line=fault.line)
    if fault.is_read:
        return Unreadable(place=where, cause=fault.cause, remedy="remove what does not count", effect="passed-over")
    return Unreadable(place=where, cause=fault.cause, remedy="correct the syntax")


def mode_of(value: Value | None) -> Mode:
    """The mode as it is written there; '' for none."""
    return value.text()[:_LONGEST] if value is not None else ""


def _mode(document: Value, place: Place) -> Iterator[Evidence]:
    mode = document.get("mode")
    if mode is not None and isinstance(mode.data, list | dict):
        yield no_mode(mode, at(place, mode), "mode")
        return
    text = mode_of(mode)
    if text:
        yield ConfiguredMode(place=at(place, mode), mode=text)
        return
    if mode is None and (not document.whole or document.text("kind") not in ("", KIND)):
        return  # the text breaks off; that is named already
    windows = [
        name
        for name in ("networkName", "sourceVip", "rootHnsEndpointName", "enableDSR")
        if document.text("winkernel", name) not in _ZERO
    ]
    if windows:
        yield ConfiguredMode(
            place=at(place, document.get("winkernel")),
            sure="likely",
            mode="kernelspace",
            note=f"winkernel.{windows[0]} is set: {WINDOWS}",
        )
        return
    yield ConfiguredMode(place=at(place, mode or document), mode="")


def no_mode(value: Value, place: Place, name: str) -> Unreadable:
    """What stands where a mode is expected, and is a list or a mapping. "{{ .Values.mode }}" is one by chance."""
    if isinstance(value.data, dict) and "?" in value.data:
        remedy = "give the file that is made from it"
        return Unreadable(place=place, cause=f"{name} is a template, and not judged", remedy=remedy)
    cause = f"{name} is no text"
    return Unreadable(place=place, cause=cause, remedy="write one of nftables, iptables", effect="refused")


def _header(document: Value, place: Place) -> Iterator[Evidence]:
    """What makes kube-proxy refuse the whole document."""
    for name, right in (("kind", KIND), ("apiVersion", API_VERSION)):
        value = document.get(name)
        if value is None and document.whole:
            cause = f"{name} is missing"
        elif value is not None and value.text() != right:
            cause = f"{name} is not {right}"
        else:
            continue
        yield Unreadable(
            place=at(place, value or document), cause=cause, remedy=f"write {name}: {right}", effect="refused"
        )


def _misnamed(document: Value, place: Place) -> Iterator[Evidence]:
    """Fields that kube-proxy does not read, and that are meant to be those that decide."""
    for key, value in document.fields().items():
        letters = re.sub("[^a-z]", "", key.lower())
        meant = _MEANT.get(letters) or next(iter(difflib.get_close_matches(letters, ["mode"], cutoff=0.85)), "")
        if meant and key != meant:
            cause = f"unknown field {field_name(key)}: kube-proxy does not read it"
            yield Unreadable(place=at(place, value), cause=cause, remedy=f"write it as {meant}", effect="passed-over")


def ipvs_options(section: Value | None, place: Place) -> Iterator[IpvsOption]:
    """What is set in a mapping whose fields are those of a KubeProxyConfiguration's `ipvs`."""
    for name, value in section.fields().items() if section is not None else ():
        shown = _shown(value)
        if value.whole and shown not in _ZERO and (name, shown) not in _DEFAULT:
            yield IpvsOption(place=at(place, value), name=f"ipvs.{field_name(name)}", value=shown[:_LONGEST])


def gates(section: Value | None, place: Place, *, as_text: bool = False) -> Iterator[Evidence]:
    """The feature gates of a mapping. as_text: their values may be texts too; kube-proxy's own file allows no such."""
    if section is None or section.data is None:
        return
    if not isinstance(section.data, dict):
        yield Unreadable(
            place=at(place, section),
            cause="the feature gates are no mapping",
            remedy="write NAME: true or false",
            effect="refused",
        )
        return
    for name, value in section.data.items():
        if name == GATE and not as_text and not isinstance(value.data, bool):
            yield Unreadable(
                place=at(place, value),
                cause=f"{name} is neither true nor false",
                remedy="write true or false, without quotes",
                effect="refused",
            )
        else:
            yield from gate(name, _shown(value), at(place, value))


def gate(name: str, value: str, place: Place) -> Iterator[Evidence]:
    """One gate, as text; only those that bear on the mode are evidence."""
    if name == GATE:
        if value in _TRUE + _FALSE:
            yield FeatureGate(place=place, name=name, value=value in _TRUE)
        else:
            cause = f"{name} is neither true nor false"
            yield Unreadable(place=place, cause=cause, remedy="write true or false", effect="refused")
    elif difflib.get_close_matches(name.lower(), [GATE.lower()], cutoff=0.85):
        yield Unreadable(
            place=place,
            cause=f"unknown feature gate {field_name(name)}",
            remedy=f"write it as {GATE}",
            effect="refused",
        )


def last_of_each(found: Iterable[Evidence]) -> list[Evidence]:
    """Of a feature gate that is given more than once, kube-proxy takes the last."""
    items = list(found)
    last = {e.name: number for number, e in enumerate(items) if isinstance(e, FeatureGate)}
    return [e for number, e in enumerate(items) if not isinstance(e, FeatureGate) or last[e.name] == number]


def _shown(value: Value) -> str:
    if isinstance(value.data, list):
        return ",".join(_shown(item) for item in value.data)
    if isinstance(value.data, dict):
        return "{...}" if value.data else ""
    return "" if value.data is None else value.text()
