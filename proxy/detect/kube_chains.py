"""Whose KUBE-* chains of iptables are, told by their names. Pure.

Others have such names too: kube-router's network policies, which k3s has in it (KUBE-ROUTER-*, KUBE-POD-FW-*,
KUBE-NWPLCY-*). Only names that kube-proxy or kubelet have ever given count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from proxy.detect.evidence import KubeChains, Place

_OF_SERVICES: Final = re.compile(r"KUBE-(SVC|SVL|EXT|SEP|FW|XLB)-[A-Z2-7]{16}")
_IPTABLES: Final = frozenset({"KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-CANARY"})
_IPVS: Final = frozenset(
    {
        "KUBE-IPVS-FILTER",
        "KUBE-IPVS-OUT-FILTER",
        "KUBE-LOAD-BALANCER",
        "KUBE-NODE-PORT",
        "KUBE-SOURCE-RANGES-FIREWALL",
    }
)
_OF_BOTH: Final = frozenset({"KUBE-SERVICES", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL"})
KUBELET_ALONE: Final = frozenset({"KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"})
"""Where these are, a kubelet is, or was."""
SHARED: Final = frozenset(
    {"KUBE-FIREWALL"}
    # kubelet's until 1.27, and kube-proxy's
    | {"KUBE-MARK-DROP", "KUBE-MARK-MASQ", "KUBE-POSTROUTING"}
)
_OF_KUBELET: Final = KUBELET_ALONE | SHARED

Named = tuple[str, bool]
"""A chain's name, and whether anything is in it: `iptables -F` empties chains and leaves them where they are."""


def may_be_kube_proxys(name: str) -> bool:
    """Whether kube-proxy makes a chain of this name, alone or with kubelet."""
    return (
        name in _IPTABLES or name in _IPVS or name in _OF_BOTH or name in SHARED or bool(_OF_SERVICES.fullmatch(name))
    )


def classify(chains: Iterable[Named], place: Place) -> list[KubeChains]:
    """chains: all of one variant and family, one for each table that has it.

    Where both modes have chains, each is told, and what belongs to neither counts for both.
    """
    known = {"iptables": 0, "ipvs": 0, "": 0}
    in_use: set[str] = set()
    services = 0
    for name, is_used in chains:
        if name in _IPVS:
            known["ipvs"] += 1
            if is_used:
                in_use.add("ipvs")
        elif name in _IPTABLES or _OF_SERVICES.fullmatch(name):
            known["iptables"] += 1
            if name.startswith("KUBE-SVC-"):
                services += 1
                if is_used:
                    in_use.add("iptables")
        elif name in _OF_BOTH or name in _OF_KUBELET:
            known[""] += 1
    shared = known.pop("")
    lead = {"iptables": services, "ipvs": known["ipvs"]}
    found = [
        KubeChains(
            place=place,
            mode=mode,
            chains=own + shared,
            services=services if mode == "iptables" else 0,
            empty=lead[mode] > 0 and mode not in in_use,
        )
        for mode, own in known.items()
        if own
    ]
    if shared and not found:
        found = [KubeChains(place=place, mode="", chains=shared, services=0)]
    return found
