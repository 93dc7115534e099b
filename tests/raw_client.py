"""A client of the stand-in that sees what its socket sees."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import ssl
from typing import Any

from integration.apiserver import FakeApi, Object

SERVICES = "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
PATIENCE = 10.0
A_MOMENT = 0.2


def service(name: str, filler: int = 0) -> Object:
    meta: Object = {"name": name, "namespace": "default", "annotations": {"filler": "x" * filler}}
    spec = {"clusterIP": "10.96.0.10", "ports": [{"port": 80}]}
    return {"kind": "Service", "metadata": meta, "spec": spec}


class Client:
    """A connection, and what came on it. The end is 'open', 'closed' (FIN) or 'reset' (RST)."""

    def __init__(self, api: FakeApi, path: str, headers: str = "") -> None:
        self.socket = socket.create_connection(("127.0.0.1", api.port), timeout=PATIENCE)
        self.got, self.end = b"", "open"
        self.ask(path, headers)

    def ask(self, path: str, headers: str = "") -> None:
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())

    def read(self, until: bytes = b"", patience: float = PATIENCE) -> bytes:
        """Read until these bytes came, or to the end, or until nothing comes for so long."""
        self.socket.settimeout(patience)
        while self.end == "open" and not (until and until in self.got):
            try:
                piece = self.socket.recv(65536)
            except TimeoutError:
                break
            except ConnectionResetError:
                self.end = "reset"
            else:
                self.got += piece
                if not piece:
                    self.end = "closed"
        return self.got

    def close(self) -> None:
        self.socket.close()


def body(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def get(api: FakeApi, path: str, **headers: str) -> tuple[int, dict[str, str], Any]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), json.loads(answer.read())


def names(items: list[Object]) -> list[str]:
    return [item["metadata"]["name"] for item in items]


WATCH = SERVICES + "?watch=1&resourceVersion=1"


def lines(got: bytes) -> list[Any]:
    return [json.loads(line) for line in re.findall(rb'\{"type".*', got)]


def shown(got: bytes) -> list[tuple[str, str]]:
    return [(line["type"], line["object"]["metadata"].get("name", "")) for line in lines(got)]


def over_tls(api: FakeApi, ca: str, client: tuple[str, str] | None = None, path: str = SERVICES) -> tuple[int, Any]:
    context = ssl.create_default_context(cafile=ca)
    if client:
        context.load_cert_chain(*client)
    connection = http.client.HTTPSConnection("127.0.0.1", api.port, timeout=PATIENCE, context=context)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
