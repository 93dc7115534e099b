"""Random changes of a small cluster, as users and controllers make them; small enough that objects meet."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from integration.chaos.ledger import Identity, Ledger, Object
from proxy.model import ENDPOINT_SLICE, LABEL_PROXY_NAME, LABEL_SERVICE_NAME, NODE, SERVICE, SERVICE_CIDR
from proxy.nodes import ZONE_LABEL
from proxy.services import SCHEDULER_ANNOTATION

NODE_NAME: Final = "node0"
NAMES: Final = [(namespace, f"s{i}") for namespace in ("default", "team") for i in range(10)]
SLICES: Final = "abc"
ZONES: Final = ("z1", "z2")
PORTS: Final = (("web", 80, "TCP"), ("dns", 53, "UDP"), ("dns-tcp", 53, "TCP"), ("sctp", 9, "SCTP"), ("", 81, "TCP"))
NODE_PORTS: Final = range(30080, 30100)  # few enough that two Services claim the same one
SHARED_IPS: Final = ("192.0.2.1", "192.0.2.2", "2001:db8::1")
RANGES: Final = (["10.0.0.0/8"], ["10.0.0.0/8", "192.168.0.0/16"], ["fd00::/8"], ["0.0.0.0/0"])
CIDRS: Final[tuple[list[str], ...]] = (
    ["10.96.0.0/12"],
    ["10.96.0.0/12", "fd00::/112"],
    ["10.96.0.0/16", "fd00:1::/112"],
    [],
)


class Changes:
    """A change a call. rand decides everything: the same seed makes the same objects in the same order."""

    def __init__(self, ledger: Ledger, rand: Random) -> None:
        self._ledger, self._rand = ledger, rand
        self._number = 0  # of what must be new each time
        self._ways: list[tuple[Callable[[], None], int]] = [
            (self._change_service, 4),
            (self._delete_service, 1),
            (self._new_slice, 2),
            (self._delete_slice, 1),
            (self._add_endpoint, 5),
            (self._remove_endpoint, 5),
            (self._change_endpoint, 6),
            (self._move_endpoint, 4),
            (self._change_node, 1),
            (self._change_cidrs, 1),
        ]
        self._change_node()
        self._put_cidrs("kubernetes", ["10.96.0.0/12", "fd00::/112"])
        for name in NAMES[::2]:
            self._put_service(name)
            for _ in range(2):
                self._put_slice(name, rand.choice(SLICES), [self._endpoint() for _ in range(rand.randrange(5))])

    def __call__(self) -> None:
        ways, weights = zip(*self._ways, strict=True)
        self._rand.choices(ways, weights)[0]()

    # Services.

    def _change_service(self) -> None:
        self._put_service(self._rand.choice(NAMES))

    def _delete_service(self) -> None:
        identity = (SERVICE, *self._rand.choice(NAMES))
        if identity in self._ledger.objects:
            self._ledger.delete(identity)

    def _put_service(self, name: tuple[str, str]) -> None:
        """Create it, or change anything of it."""
        rand, number = self._rand, self._next()
        old = self._ledger.objects.get((SERVICE, *name))
        ips = old["spec"]["clusterIPs"] if old and rand.random() < 0.9 else []
        if not ips or ips == ["None"]:
            v4, v6 = f"10.96.{number >> 8}.{number & 255}", f"fd00::{number:x}"
            ips = rand.choice([[v4], [v4], [v4, v6], [v6, v4], [v6]])
        ports: list[Object] = [
            {"name": port, "port": where, "protocol": protocol, "nodePort": rand.choice([0, rand.choice(NODE_PORTS)])}
            for port, where, protocol in rand.sample(PORTS, rand.choice([1, 1, 2, 3]))
        ]
        spec: Object = {
            "type": rand.choice(["ClusterIP", "NodePort", "LoadBalancer"]),
            "clusterIP": ips[0],
            "clusterIPs": ips,
            "ports": ports,
            # This version's own, by which it is known: see judge.
            "externalIPs": [f"172.16.{number >> 8}.{number & 255}", f"fd99::{number:x}"],
            "internalTrafficPolicy": rand.choice(["Cluster", "Cluster", "Local"]),
            "externalTrafficPolicy": rand.choice(["Cluster", "Local"]),
        }
        metadata: Object = {"namespace": name[0], "name": name[1]}
        metadata["creationTimestamp"] = old["metadata"]["creationTimestamp"] if old else _time(number)
        if rand.random() < 0.2:
            spec["externalIPs"].append(rand.choice(SHARED_IPS))
        if rand.random() < 0.2:
            spec["sessionAffinity"] = "ClientIP"
            spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": rand.choice([60, 3600])}}
        elif rand.random() < 0.3:
            metadata["annotations"] = {SCHEDULER_ANNOTATION: rand.choice(["rr", "sh"])}
        status: Object = {}
        if spec["type"] == "LoadBalancer":
            ingress = [{"ip": f"198.51.100.{rand.randrange(1, 9)}", "ipMode": rand.choice(["VIP", "VIP", "Proxy"])}]
            status = {"loadBalancer": {"ingress": ingress}}
            if rand.random() < 0.5:
                spec["loadBalancerSourceRanges"] = rand.choice(RANGES)
        match rand.randrange(40):  # not for a proxy, or not in order
            case 0:
                spec |= {"type": "ExternalName", "externalName": "example.org"}
            case 1:
                spec |= {"clusterIP": "None", "clusterIPs": ["None"]}
            case 2:
                metadata["labels"] = {LABEL_PROXY_NAME: "another"}
            case 3:
                ports[0]["port"] = 70000
            case 4:
                ports[0]["port"] = "eighty"
        self._ledger.put({"kind": SERVICE, "metadata": metadata, "spec": spec, "status": status})

    # EndpointSlices.

    def _new_slice(self) -> None:
        name, letter = self._rand.choice(NAMES), self._rand.choice(SLICES)
        if (ENDPOINT_SLICE, name[0], f"{name[1]}-{letter}") not in self._ledger.objects:
            self._put_slice(name, letter, [self._endpoint() for _ in range(self._rand.randrange(9))])

    def _put_slice(self, name: tuple[str, str], letter: str, endpoints: list[Object]) -> None:
        family = "IPv6" if letter == SLICES[-1] else "IPv4"
        ports = [{"name": port, "port": 8000 + where, "protocol": protocol} for port, where, protocol in PORTS]
        metadata = {
            "namespace": name[0],
            "name": f"{name[1]}-{letter}",
            "labels": {LABEL_SERVICE_NAME: name[1]},
            "creationTimestamp": _time(0),
        }
        if family == "IPv6":
            endpoints = [endpoint | {"addresses": [_ipv6(endpoint["addresses"][0])]} for endpoint in endpoints]
        rest = {"addressType": family, "endpoints": endpoints, "ports": ports[: self._rand.choice([3, 5, 5])]}
        self._ledger.put({"kind": ENDPOINT_SLICE, "metadata": metadata, **rest})

    def _endpoint(self) -> Object:
        """A new pod, somewhere."""
        rand, number = self._rand, self._next()
        made: Object = {
            "addresses": [f"10.244.{number >> 8}.{number & 255}"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": rand.choice([NODE_NAME, "node1", "node2"]),
        }
        if rand.random() < 0.7:
            made["hints"] = {"forZones": [{"name": rand.choice(ZONES)}]}
        return made

    def _a_slice(self) -> Object | None:
        there = [identity for identity in self._ledger.objects if identity[0] == ENDPOINT_SLICE]
        return self._ledger.objects[self._rand.choice(there)] if there else None

    def _change_slice(self, slice_: Object, endpoints: list[Object]) -> None:
        self._ledger.put({**slice_, "endpoints": endpoints})

    def _delete_slice(self) -> None:
        if slice_ := self._a_slice():
            self._ledger.delete(_identity(slice_))

    def _add_endpoint(self) -> None:
        if slice_ := self._a_slice():
            new = self._endpoint()
            if slice_["addressType"] == "IPv6":
                new["addresses"] = [_ipv6(new["addresses"][0])]
            self._change_slice(slice_, [*slice_["endpoints"], new])

    def _remove_endpoint(self) -> None:
        slice_ = self._a_slice()
        if slice_ and slice_["endpoints"]:
            gone = self._rand.choice(slice_["endpoints"])
            self._change_slice(slice_, [endpoint for endpoint in slice_["endpoints"] if endpoint is not gone])

    def _change_endpoint(self) -> None:
        """Its pod becomes ready or not, or begins to end."""
        slice_ = self._a_slice()
        if slice_ and slice_["endpoints"]:
            i = self._rand.randrange(len(slice_["endpoints"]))
            ready, serving, terminating = self._rand.choice(
                [(True, True, False), (False, False, False), (False, True, True), (False, False, True)]
            )
            conditions = {"ready": ready, "serving": serving, "terminating": terminating}
            endpoints = list(slice_["endpoints"])
            endpoints[i] = endpoints[i] | {"conditions": conditions}
            self._change_slice(slice_, endpoints)

    def _move_endpoint(self) -> None:
        """To another slice of its Service, which has it first; or the other way round."""
        slice_ = self._a_slice()
        if not slice_ or not slice_["endpoints"]:
            return
        others = [
            obj
            for identity, obj in self._ledger.objects.items()
            if identity[0] == ENDPOINT_SLICE
            and obj is not slice_
            and obj["addressType"] == slice_["addressType"]
            and obj["metadata"]["namespace"] == slice_["metadata"]["namespace"]
            and obj["metadata"]["labels"] == slice_["metadata"]["labels"]
        ]
        if others:
            other, moved = self._rand.choice(others), self._rand.choice(slice_["endpoints"])
            steps = [
                (other, [*other["endpoints"], moved]),
                (slice_, [each for each in slice_["endpoints"] if each is not moved]),
            ]
            for obj, endpoints in steps if self._rand.random() < 0.8 else reversed(steps):
                self._change_slice(obj, endpoints)

    # The rest.

    def _change_node(self) -> None:
        """Its zone, and always its address, by which the version is known: see judge."""
        number = self._next()
        labels = self._rand.choice([{}, {ZONE_LABEL: ZONES[0]}, {ZONE_LABEL: ZONES[1]}])
        addresses = [{"type": "InternalIP", "address": f"192.168.{number >> 8}.{number & 255}"}]
        addresses += [{"type": "InternalIP", "address": f"fd77::{number:x}"}] if self._rand.random() < 0.5 else []
        metadata = {"name": NODE_NAME, "labels": labels, "creationTimestamp": _time(0)}
        self._ledger.put({"kind": NODE, "metadata": metadata, "status": {"addresses": addresses}})

    def _change_cidrs(self) -> None:
        identity = (SERVICE_CIDR, "", "more")
        if identity in self._ledger.objects and self._rand.random() < 0.3:
            self._ledger.delete(identity)
        else:
            self._put_cidrs("more", self._rand.choice(CIDRS))

    def _put_cidrs(self, name: str, cidrs: list[str]) -> None:
        metadata = {"name": name, "creationTimestamp": _time(0)}
        self._ledger.put({"kind": SERVICE_CIDR, "metadata": metadata, "spec": {"cidrs": cidrs}})

    def _next(self) -> int:
        """1 to 65535; then what was used long ago is used again."""
        self._number = self._number % 65535 + 1
        return self._number


def _identity(obj: Object) -> Identity:
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _time(number: int) -> str:
    """Of a creation; the later, the greater."""
    return f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"


def _ipv6(ipv4: str) -> str:
    return "fd44::" + ipv4.replace(".", ":").removeprefix("10:244:")
