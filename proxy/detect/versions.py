"""What happens to kube-proxy's modes with which version of Kubernetes: one table, with its sources. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from proxy.detect.findings import Milestone, Severity

KEP_IPVS: Final = "KEP-5495"
KEP_DEFAULT: Final = "KEP-5343"
KEP_NFTABLES: Final = "KEP-3866"
URLS: Final = {
    KEP_IPVS: "https://kep.k8s.io/5495",
    KEP_DEFAULT: "https://kep.k8s.io/5343",
    KEP_NFTABLES: "https://kep.k8s.io/3866",
}

GATE: Final = "KubeProxyIPVS"
NEWEST: Final = (1, 37)
"""The newest release when this was written. An unknown version is judged as this one."""
KERNEL_FOR_NFTABLES: Final = (5, 13)
"""KEP-3866: what kube-proxy's nftables mode, and this proxy, need of Linux."""

Version = tuple[int, int]


class Row(NamedTuple):
    """From this version on: how bad it is, what happens, and what to do, in the operator's words."""

    since: Version
    severity: Severity
    what: str
    remedy: str


_LEAVE: Final = "move this node to nftables mode, or to kube-proxy-nft, which carries IPVS clusters of any size"
_FIX_MODE: Final = "name the mode in the configuration: nftables, or iptables to stay with what runs today"
_FIX_MODE_LATE: Final = "name the mode in the configuration: nftables, or iptables to stay with what ran before"

IPVS: Final = (
    Row((1, 35), "deprecated", "kube-proxy warns at its start that IPVS mode is deprecated", _LEAVE),
    Row(
        (1, 37),
        "deprecated",
        f"IPVS mode is behind the feature gate {GATE}, which is on by default",
        f"{_LEAVE}; {GATE}=true makes the use explicit until 1.43",
    ),
    Row(
        (1, 40),
        "broken",
        f"the gate {GATE} is off by default: kube-proxy exits at its start in IPVS mode, unless {GATE}=true is set",
        f"{_LEAVE} before this version; {GATE}=true puts it off until 1.43",
    ),
    Row((1, 43), "broken", "IPVS mode is removed: kube-proxy exits at its start, with any gate", _LEAVE),
)
"""Mode ipvs. KEP-5495."""

IPVS_WITH_GATE: Final = (
    IPVS[0],
    Row((1, 37), "deprecated", f"IPVS mode is behind the feature gate {GATE}, which is set", f"{_LEAVE} before 1.43"),
    Row((1, 40), "deprecated", f"IPVS mode works only because {GATE}=true is set", f"{_LEAVE} before 1.43"),
    IPVS[3],
)
"""Mode ipvs while the gate is set to true. KEP-5495."""

UNSET: Final = (
    Row((1, 37), "deprecated", "kube-proxy warns at its start when no mode is set: the default will change", _FIX_MODE),
    Row(
        (1, 40),
        "deprecated",
        "the default is nftables, no longer iptables: a node without a mode changes its data plane with the upgrade",
        _FIX_MODE_LATE,
    ),
)
"""No mode is set (on Linux). KEP-5343."""

GATE_TRUE: Final = (
    Row(
        (1, 40),
        "deprecated",
        f"{GATE}=true only keeps IPVS mode alive, which nothing here uses",
        f"take {GATE} out of the feature gates before 1.43",
    ),
    Row(
        (1, 43),
        "broken",
        f"kube-proxy exits at its start: the gate {GATE} is locked to false",
        f"take {GATE} out of the feature gates before this version",
    ),
    Row(
        (1, 46),
        "broken",
        f"the gate {GATE} is gone: kube-proxy exits at its start with an unknown feature gate",
        f"take {GATE} out of the feature gates before this version",
    ),
)
"""The gate is set to true. KEP-5495."""

GATE_FALSE: Final = (
    Row(
        (1, 46),
        "broken",
        f"the gate {GATE} is gone: kube-proxy exits at its start with an unknown feature gate",
        f"take {GATE} out of the feature gates before this version",
    ),
)
GATE_BORN: Final = (1, 37)
"""Before it, kube-proxy exits at its start when the gate is named at all."""


def parse(text: str) -> Version | None:
    """(major, minor) of "v1.37.0-gke.1", "1.37+", "1.37"; None when it is no version."""
    match = re.fullmatch(r"v?(\d{1,3})\.(\d{1,4})(?:\+|[.\-+][0-9A-Za-z.+_\-]*)?", text.strip())
    return (int(match[1]), int(match[2])) if match else None


def parse_kernel(release: str) -> Version | None:
    """(5, 14) of "5.14.0-427.el9.x86_64"."""
    match = re.match(r"(\d{1,9})\.(\d{1,9})", release.strip())
    return (int(match[1]), int(match[2])) if match else None


def show(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def row_at(rows: tuple[Row, ...], version: Version) -> Row | None:
    """The row that is in force; None before the first."""
    found = None
    for row in rows:
        if row.since <= version:
            found = row
    return found


def breaks_in(rows: tuple[Row, ...]) -> str:
    """The first version with which it does not work; '' when it never stops."""
    return next((show(row.since) for row in rows if row.severity == "broken"), "")


def milestones(rows: tuple[Row, ...]) -> tuple[Milestone, ...]:
    return tuple(Milestone(show(row.since), row.what) for row in rows)
