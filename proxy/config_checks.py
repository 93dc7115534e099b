"""What only shows when fields of the configuration are seen together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from proxy import config_values as values

Label = Callable[[str], str]
"""What a field is called where it was given: its path, or the name of a flag."""

_NEEDS: Final = {
    "BridgeInterface": "detectLocal.bridgeInterface",
    "InterfaceNamePrefix": "detectLocal.interfaceNamePrefix",
}
_ALPHA_LOG_OPTIONS: Final = [
    f"logging.options.{format}.{option}" for format in ("text", "json") for option in ("splitStream", "infoBufferSize")
]


def contradictions(given: Mapping[str, Any], label: Label) -> list[str]:
    """Every fault. given: the fields that were given, by their paths, as they were read."""
    # The mode decides which section kube-proxy looks into; we look into nftables whatever the mode is.
    sections = dict.fromkeys(("nftables", str(given.get("mode") or "iptables")))
    faults = [fault for section in sections for fault in _periods(section, given, label)]
    if given.get("mode") == "ipvs":
        faults += _ipvs(given, label)
    return faults + _local_pods(given, label) + _logging(given, label)


def _periods(section: str, given: Mapping[str, Any], label: Label) -> list[str]:
    names = [f"{section}.{name}" for name in ("syncPeriod", "minSyncPeriod")]
    period, least = (given.get(name) or default for name, default in zip(names, (30.0, 1.0), strict=True))
    period_name, least_name = (label(name) for name in names)
    if period < 0:
        return [f"{period_name} is {period:g} s: must be greater than 0"]
    if section == "ipvs" and not given.get(names[1]):
        return []  # its default is 0
    if least < 0:
        return [f"{least_name} is {least:g} s: must not be negative"]
    if least > period:
        return [f"{least_name} is {least:g} s: must not be longer than {period_name}, which is {period:g} s"]
    return []


def _ipvs(given: Mapping[str, Any], label: Label) -> list[str]:
    timeouts = {name: given.get(name, 0) for name in ("ipvs.tcpTimeout", "ipvs.tcpFinTimeout", "ipvs.udpTimeout")}
    faults = [f"{label(name)} is {value:g} s: must not be negative" for name, value in timeouts.items() if value < 0]
    try:
        values.cidrs(given.get("ipvs.excludeCIDRs", []))
    except values.BadValue as e:
        faults.append(f"{label('ipvs.excludeCIDRs')} is {values.show(given['ipvs.excludeCIDRs'])}: {e}")
    return faults


def _local_pods(given: Mapping[str, Any], label: Label) -> list[str]:
    mode = given.get("detectLocalMode")
    needed = _NEEDS.get(str(mode))
    if not needed:
        return []
    interface = given.get(needed, "")
    if not interface:
        return [f"{label('detectLocalMode')} is {mode!r} and needs {label(needed)}, which is empty"]
    if not values.is_interface(interface):
        rule = "at most 15 bytes, no blanks, no '/'"
        return [f"{label(needed)} is {values.show(interface)}: must be (the beginning of) an interface's name: {rule}"]
    return []


def _logging(given: Mapping[str, Any], label: Label) -> list[str]:
    faults = []
    if given.get("logging.format") == "json" and given.get("logging.vmodule"):
        faults.append(f"{label('logging.vmodule')} is given: needs {label('logging.format')} text")
    gates = given.get("featureGates", {})
    if not gates.get("LoggingAlphaOptions", gates.get("AllAlpha")):
        faults += [
            f"{label(name)} is given: needs the feature gate LoggingAlphaOptions"
            for name in _ALPHA_LOG_OPTIONS
            if given.get(name)
        ]
    return faults
