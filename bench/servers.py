"""API servers to measure with: the stand-in, and a real one where KUBEBUILDER_ASSETS names its programs."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from bench.api_objects import Object
from integration.apiserver import FakeApi
from integration.apiserver.kinds import ALL
from integration.apiserver_real import RealApi, assets
from integration.rest import Rest

ADMIN: Final = "admin"
_AT_ONCE: Final = 4
_KINDS: Final = ("Service", "EndpointSlice")


class Server(Protocol):
    """What a benchmark wants of an API server."""

    def load(self, objects: Iterable[Object]) -> None:
        """Create very many."""

    def put(self, objects: Iterable[Object]) -> None:
        """Create or replace them, as nearly at once as it can be."""

    def delete(self, kind: str, name: str) -> None:
        """In the namespace `default`."""

    def forget(self) -> None:
        """Forget the history, if that costs nothing."""

    def wait_for_watches(self, timeout: float, check: Callable[[], None]) -> None:
        """Until a client watches Services and EndpointSlices, where that can be told; `check` may raise."""

    def kubeconfig(self, path: Path) -> str: ...

    @property
    def sightings(self) -> list[str]:
        """How `listener` sees its events: its arguments."""


class StandIn:
    def __init__(self, api: FakeApi) -> None:
        self._api = api

    def load(self, objects: Iterable[Object]) -> None:
        self._api.put_all(objects)

    def put(self, objects: Iterable[Object]) -> None:
        self._api.put_all(objects)

    def delete(self, kind: str, name: str) -> None:
        self._api.delete(kind, "default", name)

    def forget(self) -> None:
        self._api.compact()

    def wait_for_watches(self, timeout: float, check: Callable[[], None]) -> None:
        deadline = time.monotonic() + timeout
        while not self._api.watching(*_KINDS) and time.monotonic() < deadline:
            check()
            with contextlib.suppress(AssertionError):  # it does not yet
                self._api.wait_for(lambda: self._api.watching(*_KINDS), timeout=0.2)

    def kubeconfig(self, path: Path) -> str:
        return self._api.kubeconfig(path)

    @property
    def sightings(self) -> list[str]:
        return ["packets", str(self._api.port)]


class Running(Protocol):
    """A server that is written to as clients do: integration.apiserver_real.RealApi."""

    ca: str

    @property
    def url(self) -> str: ...
    @property
    def tokens(self) -> dict[str, str]: ...
    def rest(self, user: str = ADMIN) -> Rest: ...
    def kubeconfig(self, path: Path, user: str = ADMIN) -> str: ...


class Real:
    """Its packets cannot be read: an event is seen when a watch of our own has it, at about the same time as the proxy."""

    def __init__(self, api: Running) -> None:
        self._api, self._rest = api, api.rest(ADMIN)

    def load(self, objects: Iterable[Object]) -> None:
        """Over few connections that stay: to make one takes longer than to write an object."""
        queue = iter(objects)
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            batches: Iterator[list[Object]] = iter(lambda: [obj for _, obj in zip(range(500), queue, strict=False)], [])
            for done in threads.map(self._create, batches):
                assert done

    def put(self, objects: Iterable[Object]) -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self._rest.put, objects))

    def delete(self, kind: str, name: str) -> None:
        self._rest.delete(kind, "default", name)

    def forget(self) -> None:
        """It forgets by itself."""

    def wait_for_watches(self, timeout: float, check: Callable[[], None]) -> None:
        """Cannot be told."""

    def kubeconfig(self, path: Path) -> str:
        return self._api.kubeconfig(path, ADMIN)

    @property
    def sightings(self) -> list[str]:
        return ["watches", self._api.url, self._api.ca, self._api.tokens[ADMIN]]

    def _create(self, objects: Iterable[Object]) -> bool:
        host = self._api.url.removeprefix("https://")
        context = ssl.create_default_context(cafile=self._api.ca)
        connection = http.client.HTTPSConnection(host, timeout=60, context=context)
        headers = {"Authorization": f"Bearer {self._api.tokens[ADMIN]}", "Content-Type": "application/json"}
        with contextlib.closing(connection):
            for obj in objects:
                kind = ALL[obj["kind"]]
                body = json.dumps({"apiVersion": kind.api_version} | obj)
                connection.request("POST", kind.path_of("default"), body, headers)
                answer = connection.getresponse()
                said = answer.read()
                if answer.status not in (201, 409):  # 409: a ServiceCIDR is there from the beginning
                    raise OSError(f"the API server does not take {obj['metadata']['name']}: {said.decode()[:300]}")
        return True


@contextlib.contextmanager
def server(directory: Path) -> Iterator[Server]:
    """A real one if the environment names it. Raises UserError if that does not start."""
    programs = assets()
    if programs is None:
        with FakeApi() as fake:
            yield StandIn(fake)
        return
    api = RealApi(programs, directory)
    api.start()
    try:
        yield Real(api)
    finally:
        api.stop()
