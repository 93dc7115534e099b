"""The status page of an agent as it runs: a process in a network namespace, with objects from manifests."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.status import pages
from tests.deployed import wait_until
from tests.netns import Namespace
from tests.objects import endpoint_slice, list_of, service
from tests.test_apiserver_agent import Cluster, cluster, env
from tests.test_cli import ENVIRONMENT, command

__all__ = ["cluster", "env"]

pytestmark = pytest.mark.root

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node-1"},
    "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
}
READ = "import sys, urllib.request as u; print(u.build_opener(u.ProxyHandler({})).open(sys.argv[1]).read().decode())"


@contextlib.contextmanager
def running(namespace: Namespace, directory: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    assert namespace.run("ip", "link", "set", "lo", "up").returncode == 0
    arguments = ["run", "--manifests", str(directory), "--node", "node-1", *more]
    with subprocess.Popen([*command(namespace), *arguments], env=ENVIRONMENT, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def status(namespace: Namespace, *more: str) -> subprocess.CompletedProcess[str]:
    return namespace.run(sys.executable, "-m", "proxy", "status", *more)


def get(namespace: Namespace, path: str) -> subprocess.CompletedProcess[str]:
    return namespace.run(sys.executable, "-c", READ, f"http://127.0.0.1:10249{path}")


def write(directory: Path, name: str, *objects: Any) -> None:
    """All at once, as a rename is."""
    (directory / f".{name}").write_text(list_of(*objects))
    (directory / f".{name}").rename(directory / name)


def test_what_it_says_follows_the_cluster(namespace: Namespace, tmp_path: Path) -> None:
    write(tmp_path, "web.json", NODE, service("web", "10.96.0.1"), endpoint_slice("web", "10.244.0.1"))
    with running(namespace, tmp_path) as agent:
        wait_until(lambda: status(namespace, "--exit-code").returncode == 0, "it is healthy")
        said = json.loads(status(namespace, "-o", "json").stdout)
        assert said["node"] == "node-1" and said["counts"] == {"services": 1, "slices": 1, "endpoints": 1}
        assert said["source"] == "a directory of manifests"

        write(tmp_path, "bad.json", service("bad", "10.96.0.2", ports=[{"port": 70000}]))
        write(tmp_path, "more.json", service("more", "10.96.0.3"), endpoint_slice("more", "10.244.0.9"))
        wait_until(lambda: "Service default/bad: spec.ports[0].port: 70000" in status(namespace).stdout, "it is told")
        found = json.loads(get(namespace, f"{pages.SERVICES}?q=10.244.0.9").stdout)
        assert [row["name"] for row in found["rows"]] == ["more"]
        after = json.loads(status(namespace, "-o", "json").stdout)["history"]["slots"]
        assert sum(slot[1] for slot in after) >= 1 and sum(slot[2] for slot in after) >= 1  # changes, commits
        assert "<!doctype html>" in get(namespace, "/").stdout

        agent.send_signal(signal.SIGTERM)
        assert agent.wait(timeout=20) == 0
    assert "no answer" in status(namespace).stderr and status(namespace).returncode == 4


def test_it_can_be_switched_off(namespace: Namespace, tmp_path: Path) -> None:
    write(tmp_path, "web.json", NODE, service("web", "10.96.0.1"), endpoint_slice("web", "10.244.0.1"))
    with running(namespace, tmp_path, "--status-page=false"):
        wait_until(lambda: get(namespace, "/metrics").returncode == 0, "metrics are served")
        for path in pages.PATHS:
            assert "404" in get(namespace, path).stderr, path
        said = status(namespace)
        assert said.returncode == 4 and "its status page is switched off" in said.stderr


def test_watches_of_an_api_server_are_shown(cluster: Cluster, namespace: Namespace) -> None:
    cluster.env.put(*cluster.web(1))
    cluster.start()
    wait_until(lambda: status(namespace).returncode == 0, "it answers")
    wait_until(lambda: len(watches(namespace)) == 4 and all(watches(namespace).values()), "all lists have come")
    said = json.loads(status(namespace, "-o", "json").stdout)
    assert said["source"] == "the API server" and said["counts"]["services"] >= 1
    assert {watch["kind"] for watch in said["watches"]} == {"Service", "EndpointSlice", "Node", "ServiceCIDR"}
    assert all(0 <= watch["heard_ago"] < 60 for watch in said["watches"])
    assert cluster.agent.stop() == 0


def watches(namespace: Namespace) -> dict[str, str]:
    """How the last list of each kind came."""
    return {watch["kind"]: watch["mode"] for watch in json.loads(status(namespace, "-o", "json").stdout)["watches"]}
