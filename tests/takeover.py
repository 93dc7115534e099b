"""A node that a kube-proxy has programmed (tests/data/dataplanes), to be taken over under traffic."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from integration.agent import Agent
from integration.cluster import CONFIG
from integration.topology import Bed, Host
from integration.traffic import Attempt, LongLived, Stream, tally
from tests.dataplanes import DATA, make_counters, recorded

CLUSTER_IP: Final = ("10.96.30.1", 80)
NODE_PORT: Final = ("192.168.77.2", 30101)
LOAD_BALANCER: Final = ("198.51.100.30", 443)


def objects() -> list[dict[str, Any]]:
    """The cluster's objects, with what a list of one kind leaves out."""
    found = []
    for item in json.loads((DATA / "objects.json").read_text())["items"]:
        kind, version = _kind(item)
        found.append({"kind": kind, "apiVersion": version} | item)
    return found


def _kind(item: Mapping[str, Any]) -> tuple[str, str]:
    if "addressType" in item:
        return "EndpointSlice", "discovery.k8s.io/v1"
    if "cidrs" in item.get("spec", {}):
        return "ServiceCIDR", "networking.k8s.io/v1"
    return ("Node", "v1") if "ports" not in item.get("spec", {}) else ("Service", "v1")


def restore_iptables(bed: Bed, mode: str, variant: str) -> None:
    node = bed.node.namespace
    with node.entered():
        make_counters("ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts")
    for program in ("iptables", "ip6tables"):
        rules = re.sub(r"^\[\d+:\d+\] -A", "-A", recorded(mode, f"{program}-save.txt"), flags=re.MULTILINE)
        node.run([f"{program}-{variant}-restore"], text_in=rules)


def start_agent(bed: Bed, directory: Path, *options: str) -> Agent:
    manifests = directory / "manifests"
    manifests.mkdir(parents=True)
    (manifests / "objects.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects()}))
    config = directory / "config.json"
    config.write_text(json.dumps(CONFIG))
    return bed.agent(config, manifests, *options)


class Traffic:
    """Connections that stay open, and new ones a millisecond apart, from everywhere, through addresses of all kinds.

    A context manager: they run inside the `with` block. old: how many stay open, of each way. patience: seconds that these
    wait for an answer.
    """

    def __init__(self, bed: Bed, *, pause: float = 0.001, old: int = 4, patience: float = 2.0) -> None:
        ways: Sequence[tuple[Host, tuple[str, int]]] = (
            (bed.pod1, CLUSTER_IP),
            (bed.node, CLUSTER_IP),
            (bed.client, NODE_PORT),
            (bed.client, LOAD_BALANCER),
            (bed.pod2, LOAD_BALANCER),
            (bed.node, NODE_PORT),
        )
        self.old = [LongLived(host, *to, count=old) for host, to in ways] if old else []
        for each in self.old:
            for connection, _ in each._connections:
                connection.settimeout(patience)
        self.streams = [Stream(host, *to, pause=pause) for host, to in ways]

    def __enter__(self) -> Traffic:
        for stream in self.streams:
            stream.start()
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self.streams:
            stream.stop()
        for each in self.old:
            each.stop()

    @property
    def count(self) -> int:
        """New connections so far, of the way with the fewest."""
        return min(len(stream.attempts) for stream in self.streams)

    def failures(self) -> list[tuple[str, Attempt]]:
        """New connections that failed."""
        return [
            (stream.source.name, attempt) for stream in self.streams for attempt in stream.attempts if attempt.failure
        ]


def works(bed: Bed) -> None:
    """Each way once, for the dataplane that is there now. Raises AssertionError."""
    for host, to in (
        (bed.pod1, CLUSTER_IP),
        (bed.node, CLUSTER_IP),
        (bed.client, NODE_PORT),
        (bed.client, LOAD_BALANCER),
    ):
        assert not tally(host, *to, count=3).failures, (host.name, to)
