"""A bed whose node runs an agent, and the objects that the agent sees, which can be changed while it runs."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from integration import namespaces
from integration.topology import Bed
from integration.traffic import ask, endpoint, until

Object = Mapping[str, Any]

CONFIG: Final[Object] = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "mode": "nftables",
    "hostnameOverride": "node0",
    "clusterCIDR": "10.244.0.0/16,fd44::/48",
    "healthzBindAddress": "127.0.0.1:10256",
    "metricsBindAddress": "127.0.0.1:10249",
    "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
}
SERVICE_CIDRS: Final[Object] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "ServiceCIDR",
    "metadata": {"name": "kubernetes"},
    "spec": {"cidrs": ["10.96.0.0/12", "fd00:10:96::/112"]},
}
# Objects are read in the order in which they are written. So when the last written has its effect, all before have.
_LAST, _LAST_ADDRESS, _LAST_PORT = "written-last", "10.111.255.254", 9
_DIRECTIONS: Final = (8080, 8081)


class Cluster:
    """`start` it, change objects, `settle`, send packets; `stop`. Names of objects are unique by kind.

    config: what differs from CONFIG, key by key at any depth; a key whose value is None is left out. options: of the
    agent's command line.
    """

    def __init__(
        self,
        bed: Bed,
        directory: Path,
        config: Object | None = None,
        labels: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ):
        self.bed, self._options = bed, options
        self.manifests = directory / "manifests"
        self.manifests.mkdir(parents=True)
        self._config = directory / "config.json"
        self._config.write_text(json.dumps(merged(CONFIG, config or {})))
        self._turn = 0
        self.put(SERVICE_CIDRS, node(labels or {}))
        self.put(service(_LAST, [_LAST_ADDRESS], port("", _LAST_PORT)))
        self._write_last()

    def start(self) -> None:
        """Returns when the first rules are in the kernel."""
        self.agent = self.bed.agent(self._config, self.manifests, *self._options)
        self.agent.wait("programmed")

    def stop(self) -> None:
        self.agent.stop()

    def restart(self, number: signal.Signals) -> None:
        """End the agent by this signal and start another."""
        self.agent.process.send_signal(number)
        self.agent.process.wait(10)
        namespaces.stop(self.agent.process)
        self.agent.stop()
        self.start()

    def put(self, *objects: Object) -> None:
        """Write objects, each whole: beside its place, then renamed."""
        for obj in objects:
            path = self._path(obj["kind"], obj["metadata"]["name"])
            beside = path.with_name(f".{path.name}.tmp")
            beside.write_text(json.dumps(obj))
            beside.rename(path)

    def delete(self, kind: str, name: str) -> None:
        self._path(kind, name).unlink()

    def clear(self) -> None:
        """Delete every Service and EndpointSlice."""
        for kind in ("Service", "EndpointSlice"):
            for path in self.manifests.glob(f"{kind}-*.json"):
                if path != self._path(kind, _LAST):
                    path.unlink()

    def settle(self) -> None:
        """Wait until all that has been written is in the kernel. Raises TimeoutError; AgentEnded if the agent is gone."""
        self._write_last()
        if not until(self._last_is_in, timeout=10):
            self.agent.check()
            raise TimeoutError("the agent does not put into the kernel what is written to its directory")

    def _write_last(self) -> None:
        self._turn = 1 - self._turn
        there = {self.bed.pod4.ipv4: "node1"}
        self.put(endpoint_slice(_LAST, _LAST, there, port("", _DIRECTIONS[self._turn])))

    def _last_is_in(self) -> bool:
        try:
            reached = ask(self.bed.node, _LAST_ADDRESS, _LAST_PORT, timeout=0.5).endpoint
        except OSError:
            return False
        return reached == endpoint(self.bed.pod4.ipv4, _DIRECTIONS[self._turn])

    def _path(self, kind: str, name: str) -> Path:
        return self.manifests / f"{kind}-{name}.json"


class Clusters:
    """One agent at a time on a bed: the last one stays for as long as the same configuration and labels are wanted."""

    def __init__(self, bed: Bed, directory: Path, options: Sequence[str] = ()) -> None:
        self.bed, self._options = bed, options
        self._directory = directory
        self._number = 0
        self._wanted = ""
        self._current: Cluster | None = None

    def get(self, config: Object | None = None, labels: Mapping[str, str] | None = None) -> Cluster:
        """A cluster that runs, with the arguments of Cluster."""
        wanted = json.dumps([config or {}, labels or {}], sort_keys=True)
        if self._current is None or wanted != self._wanted:
            if self._current:
                self._current.stop()
            self._number += 1
            self._current = Cluster(self.bed, self._directory / str(self._number), config, labels, self._options)
            self._wanted = wanted
            self._current.start()
        return self._current


def node(labels: Mapping[str, str]) -> Object:
    """The bed's node as the API has it."""
    addresses = (("InternalIP", "192.168.77.2"), ("InternalIP", "fd77::2"), ("Hostname", "node0"))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node0", "labels": {"kubernetes.io/hostname": "node0", **labels}},
        "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd44::/64"]},
        "status": {"addresses": [{"type": kind, "address": address} for kind, address in addresses]},
    }


def port(name: str, number: int, protocol: str = "TCP") -> Object:
    """A port of a Service, or of an EndpointSlice."""
    return {"name": name, "port": number, "protocol": protocol}


def service(name: str, addresses: list[str], *ports: Object, **spec: Any) -> Object:
    """A Service in the namespace `default` with these clusterIPs; `spec` is added to its spec."""
    families = ["IPv6" if ":" in address else "IPv4" for address in addresses]
    own = {"clusterIP": addresses[0], "clusterIPs": addresses, "ipFamilies": families, "ports": list(ports)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**own, **spec},
    }


def endpoint_slice(name: str, of: str, nodes: Mapping[str, str], *ports: Object) -> Object:
    """An EndpointSlice of the Service `of`, all ready. nodes: address (of one family) -> node name."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": of}},
        "addressType": "IPv6" if any(":" in address for address in nodes) else "IPv4",
        "ports": list(ports),
        "endpoints": [
            {"addresses": [address], "nodeName": where, "conditions": {"ready": True}}
            for address, where in nodes.items()
        ],
    }


def merged(base: Object, changes: Object) -> dict[str, Any]:
    both = dict(base)
    for key, value in changes.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return {key: value for key, value in both.items() if value is not None}
