"""A client of the Kubernetes API for tests: requests and watches as they are, and objects put and deleted."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from integration.apiserver.kinds import ALL

Object = dict[str, Any]
TIMEOUT = 30.0
HAVE_STATUS = ("Service", "Node")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Refused(Exception):
    """The server did not do it: what it said."""


class Rest:
    """Requests as one user. `token` '': anonymous. Threads may share it: each request has its own connection."""

    def __init__(self, url: str, ca: str = "", token: str = "", client: tuple[str, str] | None = None) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 443
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._context = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        if self._context and client:
            self._context.load_cert_chain(*client)

    def request(self, method: str, path: str, body: Object | bytes | None = None, **headers: str) -> Answer:
        """`headers`: '_' for '-'. Raises OSError when there is no answer."""
        with self._asked(method, path, body, headers) as answer:
            return Answer(answer.status, dict(answer.headers), answer.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, None, **headers)

    @contextmanager
    def watch(self, path: str) -> Iterator[Iterator[Object]]:
        """The events of a watch, as they come; they end when the server ends it. Raises Refused."""
        with self._asked("GET", path, None, {}) as answer:
            if answer.status != 200:
                raise Refused(f"{answer.status}: {answer.read().decode(errors='replace')}")
            yield (json.loads(line) for line in answer)

    def put(self, obj: Object) -> Object:
        """Create the object, or replace it; its status too. Returns it as the server has it. Raises Refused."""
        kind, meta = ALL[obj["kind"]], obj["metadata"]
        body = {"apiVersion": kind.api_version} | obj
        namespace = meta.get("namespace", "default")
        path = kind.path_of(namespace, meta["name"])
        # Looked up first: to create a Service again is refused for its clusterIP, which is taken, not for its name.
        answer = self.get(path)
        if answer.status == 404:
            answer = self.request("POST", kind.path_of(namespace), body)
        else:
            answer = self.request("PUT", path, _at_version_of(body, answer))
        stored = _accepted(answer)
        if "status" in obj and obj["kind"] in HAVE_STATUS:
            body = _at_version_of(body, answer)
            stored = _accepted(self.request("PUT", f"{path}/status", body))
        return stored

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Raises Refused, also when there is none."""
        _accepted(self.request("DELETE", ALL[kind].path_of(namespace, name)))

    @contextmanager
    def _asked(
        self, method: str, path: str, body: Object | bytes | None, headers: dict[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        connection = (
            http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT, context=self._context)
            if self._context
            else http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        )
        try:
            data = json.dumps(body).encode() if isinstance(body, dict) else body
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            content = {"Content-Type": "application/json"} if data else {}
            connection.request(method, path, data, self._headers | content | given)
            yield connection.getresponse()
        finally:
            connection.close()


def _accepted(answer: Answer) -> Object:
    if answer.status not in (200, 201, 202):
        raise Refused(f"{answer.status}: {answer.body.decode(errors='replace')}")
    accepted: Object = answer.json()
    return accepted


def _at_version_of(obj: Object, stored: Answer) -> Object:
    version = _accepted(stored)["metadata"]["resourceVersion"]
    return obj | {"metadata": obj["metadata"] | {"resourceVersion": version}}
