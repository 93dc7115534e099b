"""detect and migrate on a node with 10,000 virtual servers of IPVS in its kernel (Debian's 6.1, make test-vm)."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from bench.api_objects import NODE, objects, pods_of
from bench.cluster import FIRST_CLUSTER_IP, FIRST_POD_IP, NODES, address
from integration.vm import IN_VM
from tests.dataplanes import recorded, restore_iptables, run
from tests.netns import Namespace

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(IN_VM not in os.environ, reason="loads kernel modules, in a virtual machine: make test-vm"),
]
CHECKOUT: Final = Path(__file__).parent.parent.parent
SERVERS: Final = 10_000
ENDPOINTS: Final = 2
NODE_IP: Final = "192.0.2.1"
CONFIG: Final = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "mode": "ipvs",
    "clusterCIDR": "10.244.0.0/16,fd44::/48",
}


@pytest.fixture(scope="module")
def node() -> Iterator[Namespace]:
    """With what kube-proxy makes of that many Services: servers, addresses, ipsets, rules."""
    subprocess.run(["modprobe", "--all", "ip_vs", "ip_vs_rr", "dummy", "ip_set"], check=True)
    made = Namespace()
    ips = [address(FIRST_CLUSTER_IP + number) for number in range(SERVERS)]
    servers, links = [], ["link set lo up", f"addr add {NODE_IP}/32 dev lo", "link add kube-ipvs0 type dummy"]
    for number, ip in enumerate(ips):
        servers.append(f"-A -t {ip}:80 -s rr")
        servers += [
            f"-a -t {ip}:80 -r {address(FIRST_POD_IP + pod)}:8080 -m -w 1" for pod in pods_of(number, ENDPOINTS)
        ]
        links.append(f"addr add {ip}/32 dev kube-ipvs0")
    run(made, "ip", "-batch", "-", stdin="\n".join(links))
    run(made, "ipvsadm", "-R", stdin="\n".join(servers) + "\n")
    sets = re.findall(r"^create .*\n", recorded("ipvs", "ipset-save.txt"), re.MULTILINE)
    members = [f"add KUBE-CLUSTER-IP {ip},tcp:80\n" for ip in ips]
    local = [address(FIRST_POD_IP + pod) for pod in range(SERVERS * ENDPOINTS) if f"node-{pod % NODES}" == NODE]
    members += [f"add KUBE-LOOP-BACK {ip},tcp:8080,{ip}\n" for ip in local]
    run(made, "ipset", "restore", stdin="".join(sets + members))
    restore_iptables(made, "ipvs", "nft")
    yield made
    made.close()


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The objects that such rules are made of, and the configuration."""
    directory = tmp_path_factory.mktemp("large")
    (directory / "objects").mkdir()
    versions = {"EndpointSlice": "discovery.k8s.io/v1", "ServiceCIDR": "networking.k8s.io/v1"}
    found = [{"apiVersion": versions.get(one["kind"], "v1")} | one for one in objects(SERVERS, ENDPOINTS)]
    half = len(found) // 2  # a file has a limit of 32 MiB
    for name, part in (("a.json", found[:half]), ("b.json", found[half:])):
        (directory / "objects" / name).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": part}))
    (directory / "config.conf").write_text(json.dumps(CONFIG))
    return directory


def told(node: Namespace, *command: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the document of a command of ours. How long it takes and what memory, for whoever reads along (-s)."""
    there = f"/proc/{os.getpid()}/fd/{node.descriptor}"
    began = time.monotonic()
    done = subprocess.run(
        ["nsenter", f"--net={there}", "env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-m", "proxy", *command],
        capture_output=True,
        text=True,
    )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{command[0]}: {time.monotonic() - began:.1f} s, children at most {peak:.0f} MB, exit {done.returncode}")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def results(report: dict[str, Any]) -> dict[str, int]:
    return {result: number for result, number in report["counts"]["results"].items() if number}


def test_detect_counts_all_of_them(node: Namespace) -> None:
    code, report = told(node, "detect", "-o", "json")
    assert code == 0
    [table] = [one for one in report["evidence"] if one["type"] == "IpvsTable"]
    assert (table["services"], table["destinations"], table["kube"]) == (SERVERS, ENDPOINTS * SERVERS, SERVERS)
    assert table["place"]["name"] == "netlink"


def test_migrate_finds_two_that_are_wrong_among_them(node: Namespace, manifests: Path) -> None:
    """And no fault with how all of them are masqueraded, refused, and led back to themselves."""
    damaged, gone = (address(FIRST_CLUSTER_IP + number) for number in (0, SERVERS - 1))
    for change in (f"-a -t {damaged}:80 -r 10.244.9.9:8080 -m -w 1", f"-D -t {gone}:80"):
        run(node, "ipvsadm", *change.split())
    code, report = told(
        node, "migrate", "--dry-run", "--manifests", str(manifests / "objects"), "--config",
        str(manifests / "config.conf"), "--node", NODE, "--here", "-o", "json",
    )  # fmt: skip
    assert (code, report["verdict"], report["gaps"]) == (10, "ready-with-changes", [])
    assert results(report) == {"same": SERVERS - 2, "endpoints": 1, "only-here": 1}
    wrong = {one["service"] for one in report["services"] if one["result"] != "same"}
    assert wrong == {"default/service-0", f"default/service-{SERVERS - 1}"}
    changes = {one["check"] for one in report["findings"] if one["severity"] == "change"}
    assert changes == {"ip-forward", "stale-rules"}
