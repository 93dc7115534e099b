"""A cluster of one size in an API server, and the changes that are made to it and known again by their marks."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Final

from bench import api_objects as objects
from bench import marks
from bench.api_objects import Object
from bench.cluster import FIRST_CLUSTER_IP, FIRST_POD_IP, address
from bench.dataplane_services import Size
from bench.servers import Server

GANG_PODS, SLICE = 512, 100
"""A gang's pods, and how many of them an EndpointSlice takes: the controller's default."""
WAITING: Final = {"ready": False, "serving": False, "terminating": False}
READY: Final = {"ready": True, "serving": True, "terminating": False}
PREEMPTED: Final = {"ready": False, "serving": False, "terminating": True}
GANG_MARKS: Final = tuple(address(marks.FIRST_GANG_POD + i) for i in range(GANG_PODS))
_GANG, _ADDED = 1_000_000, 2_000_000  # numbers that no other Service has
SAMPLES: Final = 20


class Cluster:
    """`size` Services, each with its slice, and one with a gang of pods that are not ready."""

    def __init__(self, size: Size, api: Server) -> None:
        self.size, self.api = size, api
        self._pods = self._services = 0
        api.load(objects.objects(size.services, size.endpoints))
        api.put([_service(_GANG, marks.GANG), *gang(WAITING)])
        self.rest()

    def rest(self) -> None:
        """Forget the history. The collector need not look at all the objects again and again, while somebody waits."""
        self.api.forget()
        gc.collect()
        gc.freeze()

    def samples(self) -> list[str]:
        """Some ClusterIPs, first and last among them."""
        count = min(SAMPLES, self.size.services)
        last = self.size.services - 1
        return sorted({address(FIRST_CLUSTER_IP + i * last // max(1, count - 1)) for i in range(count)})

    def change_endpoint(self, number: int) -> str:
        """Replace one endpoint of Service `number` by a new one. Returns its mark."""
        pods = objects.pods_of(number, self.size.endpoints)
        mark, pods[0] = self._new_pod()  # always the same one, so that each time one changes, not two
        self.api.put([objects.endpoint_slice(number, pods)])
        return mark

    def add_service(self) -> tuple[int, str, str]:
        """A new Service and its slice. Returns the Service's number and its address, and the mark of one endpoint."""
        self._services += 1
        number, ip = _ADDED + self._services, address(marks.FIRST_SERVICE + self._services)
        pods = list(range(self.size.endpoints))
        mark, pods[0] = self._new_pod()
        self.api.put([_service(number, ip), objects.endpoint_slice(number, pods)])
        return number, ip, mark

    def delete_service(self, number: int) -> str:
        """Returns the mark of the Service. Its slice stays until `delete_slice`, as when a controller removes it later."""
        self.api.delete("Service", f"service-{number}")
        return address(marks.FIRST_SERVICE + number - _ADDED)

    def delete_slice(self, number: int) -> None:
        self.api.delete("EndpointSlice", f"service-{number}-abcde")

    def gang(self, conditions: Object) -> None:
        """All slices of the gang at once."""
        self.api.put(gang(conditions))

    def _new_pod(self) -> tuple[str, int]:
        self._pods += 1
        number = marks.FIRST_POD + self._pods
        return address(number), number - FIRST_POD_IP


def gang(conditions: Object) -> Iterator[Object]:
    """The gang's slices, all of whose endpoints are in these conditions."""
    first = marks.FIRST_GANG_POD - FIRST_POD_IP
    for number, start in enumerate(range(0, GANG_PODS, SLICE)):
        pods = range(first + start, first + min(start + SLICE, GANG_PODS))
        slice_ = objects.endpoint_slice(_GANG, pods)
        slice_["metadata"]["name"] += str(number)
        for endpoint in _endpoints(slice_):
            endpoint["conditions"] = dict(conditions)
        yield slice_


def _endpoints(slice_: Object) -> Iterable[Object]:
    found: list[Object] = slice_["endpoints"]
    return found


def _service(number: int, ip: str) -> Object:
    made = objects.service(number)
    made["spec"] |= {"clusterIP": ip, "clusterIPs": [ip]}
    return made
