"""Kubernetes' feature gates that kube-proxy asks about, and why each changes nothing in this proxy."""

from __future__ import annotations

import difflib
from typing import Final, NamedTuple


class Gate(NamedTuple):
    """default: the value that is no news, because it is what this proxy does."""

    default: bool
    why: str


_ALWAYS: Final = "this proxy always does it"
_NEVER: Final = "this proxy has no such mode"
_LOGS: Final = "this proxy has its own logs"
_PAGES: Final = "this proxy always serves that page"

GATES: Final = {
    "AllAlpha": Gate(False, "no feature gate changes anything here"),
    "AllBeta": Gate(False, "no feature gate changes anything here"),
    "ComponentFlagz": Gate(True, _PAGES),
    "ComponentStatusz": Gate(True, _PAGES),
    "ContextualLogging": Gate(True, _LOGS),
    "KubeProxyIPVS": Gate(True, _NEVER),
    "KubeProxyNFTablesLocalhostNodePorts": Gate(
        True, "NodePorts answer on loopback addresses where nodePortAddresses lists them, and nowhere else"
    ),
    "LoggingAlphaOptions": Gate(False, _LOGS),
    "LoggingBetaOptions": Gate(True, _LOGS),
    "MultiCIDRServiceAllocator": Gate(True, _ALWAYS),
    "NFTablesNetlink": Gate(True, _ALWAYS),
    "NFTablesProxyMode": Gate(True, _ALWAYS),
    "NativeHistograms": Gate(False, "this proxy's metrics have none"),
    "PreferSameTrafficDistribution": Gate(True, _ALWAYS),
    "WatchListClient": Gate(True, "this proxy asks for what the API server can do"),
    "WinDSR": Gate(True, _NEVER),
    "WinOverlay": Gate(True, _NEVER),
}


def note(gate: str, value: bool) -> str:
    """What is to be said of this setting; "" when there is nothing."""
    known = GATES.get(gate)
    if known:
        return "" if value == known.default else f"no effect here: {known.why}"
    close = difflib.get_close_matches(gate, GATES, n=1, cutoff=0.8)
    return "no effect here: nothing in this proxy depends on it" + (f"; did you mean {close[0]}?" if close else "")
