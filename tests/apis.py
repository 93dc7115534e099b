"""The API server that a test is about: the stand-in, and a real one when KUBEBUILDER_ASSETS names its programs.

A module that wants it imports the fixture: `from tests.apis import env`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pytest

from integration.apiserver import FakeApi, Object
from integration.apiserver_real import SERVICE_CIDRS, USERS, VARIABLE, RealApi, assets, write_kubeconfig
from integration.rest import Refused, Rest
from proxy.errors import UserError

PROXY_RULES: list[Object] = [
    {"apiGroups": [""], "resources": ["services", "endpoints"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["servicecidrs"], "verbs": ["list", "watch"]},
]
"""What the ClusterRole system:node-proxier of a real API server allows."""


class ApiServer(Protocol):
    """A running API server. Its users are those of integration.apiserver_real.USERS."""

    name: str
    port: int
    streams: bool  # whether it has streaming lists

    @property
    def url(self) -> str: ...
    def rest(self, user: str = "admin") -> Rest: ...
    def kubeconfig(self, path: Path, user: str = "admin") -> str: ...
    def compact(self) -> None:
        """Forget the history: a watch from before now gets 410. Connections break."""

    def restart(self) -> None: ...
    def stop(self) -> None: ...


class StandIn:
    name = "stand-in"
    streams = True

    def __init__(self) -> None:
        self.tokens = {user: f"token-of-{user.replace(':', '-')}" for user in USERS}
        tokens = {token: user for user, token in self.tokens.items()}
        self.fake = FakeApi(tokens=tokens, rules={"nobody": [], "system:kube-proxy": PROXY_RULES})
        self.fake.put(
            {"kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": list(SERVICE_CIDRS)}}
        )
        self.fake.start()
        self.port = self.fake.port
        self.stop = self.fake.stop
        self.restart = self.fake.restart

    @property
    def url(self) -> str:
        return self.fake.url

    def rest(self, user: str = "admin") -> Rest:
        return Rest(self.url, token=self.tokens[user] if user else "")

    def kubeconfig(self, path: Path, user: str = "admin") -> str:
        write_kubeconfig(path, self.url, "", {"token": self.tokens[user]})
        return str(path)

    def compact(self) -> None:
        self.fake.compact()
        self.restart()


_REAL = pytest.StashKey[RealApi | UserError]()


def real_server(config: pytest.Config, factory: pytest.TempPathFactory) -> RealApi:
    """The one of this run of pytest, started when it is first asked for."""
    if _REAL not in config.stash:
        try:
            folder = assets()
            assert folder
            server = RealApi(folder, factory.mktemp("real"))
            config.add_cleanup(server.stop)
            server.start()
            config.stash[_REAL] = server
        except UserError as e:  # once is enough: it takes long
            config.stash[_REAL] = e
    started = config.stash[_REAL]
    if isinstance(started, UserError):
        pytest.fail(str(started), pytrace=False)
    return started


class Environment:
    """An API server for one test, and what the test puts there: it is deleted at the end."""

    _numbers = itertools.count(1)  # of the whole run: a real server's objects of one kind have one name each

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.admin = server.rest()
        self._made: dict[tuple[str, str, str], None] = {}

    def name(self, stem: str = "o") -> str:
        """A name that no other object has; later ones come later in lists."""
        return f"{stem}-{next(self._numbers):06}"

    def address(self) -> str:
        """A clusterIP that no other Service has."""
        number = next(self._numbers)
        return f"10.100.{number >> 8}.{number & 255}"

    def put(self, *objects: Object) -> Object:
        """Create them, or replace them. Returns the last as the server has it."""
        stored: Object = {}
        for obj in objects:
            stored = self.admin.put(obj)
            self._made[key(obj)] = None
        return stored

    def delete(self, obj: Object) -> None:
        kind, namespace, name = key(obj)
        self.admin.delete(kind, namespace, name)
        self._made.pop((kind, namespace, name), None)

    def clear(self) -> None:
        for kind, namespace, name in reversed(self._made):
            with suppress(Refused):
                self.admin.delete(kind, namespace, name)
        self._made.clear()


def key(obj: Object) -> tuple[str, str, str]:
    meta = obj["metadata"]
    return obj["kind"], meta.get("namespace", "default"), meta["name"]


def version(obj: Object) -> int:
    """The resourceVersion of an object or a list."""
    return int(obj["metadata"]["resourceVersion"])


WITHOUT = pytest.mark.skip(reason=f"{VARIABLE} names no folder with etcd and kube-apiserver")
SERVERS = ["stand-in", pytest.param("real", marks=[] if os.environ.get(VARIABLE) else [WITHOUT])]


@pytest.fixture(params=SERVERS)
def env(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """The same test runs against both."""
    server: ApiServer = StandIn() if request.param == "stand-in" else real_server(request.config, tmp_path_factory)
    made = Environment(server)
    yield made
    made.clear()
    if request.param == "stand-in":
        server.stop()


def service(name: str, ip: str, *, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    """A Service that the API server accepts."""
    port = {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"} | ({"labels": labels} if labels else {}),
        "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ports": [port]} | spec,
    }


def endpoint_slice(name: str, service_name: str, *addresses: str, labels: dict[str, str] | None = None) -> Object:
    """An EndpointSlice that the API server accepts, with ready endpoints on node0."""
    ready = {"ready": True, "serving": True, "terminating": False}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": service_name} | (labels or {}),
        },
        "addressType": "IPv6" if ":" in "".join(addresses) else "IPv4",
        "endpoints": [{"addresses": [address], "conditions": ready, "nodeName": "node0"} for address in addresses],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


def node(name: str, labels: dict[str, str] | None = None) -> Object:
    """A Node that the API server accepts."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})},
        "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.168.77.2"}]},
    }
