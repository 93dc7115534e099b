"""proxy.apiserver over TLS: from start to stop, silent, and through a proxy."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.apiserver.certificates import Authority
from integration.apiserver.server import FakeApi
from proxy.apiserver import Connection
from proxy.events import Put
from proxy.model import SERVICE
from proxy.trouble import SILENT, Trouble
from tests.test_apiserver import Following, alive, service, shown


@pytest.fixture
def api(authority: Authority) -> Iterator[FakeApi]:
    with FakeApi(tls=authority.server(), ca=authority.ca) as server:
        yield server


def test_from_start_to_stop(api: FakeApi, tmp_path: Path) -> None:
    api.put(service("web"))
    follower = Following(api, api.kubeconfig(tmp_path / "k"))
    assert follower.begin()[SERVICE] == ["web"]
    api.put(service("other"))
    assert shown(follower.until(Put)) == [("put", "other")]
    follower.source.stop()
    assert alive(follower.source) == []


def test_silence_in_a_stream_has_an_end(api: FakeApi, tmp_path: Path) -> None:
    connection = Connection(api.kubeconfig(tmp_path / "k"))
    with connection.get("/api/v1/services?watch=1&resourceVersion=1", read_timeout=5) as answer:
        answer.wait_up_to(0.1)
        with pytest.raises(Trouble) as caught:
            list(answer.pieces())
    assert (caught.value.status, caught.value.cause) == (SILENT, "timed out")


class Tunnel:
    """An HTTP proxy that knows CONNECT, and takes every client to `target`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.asked.append(client.recv(65536))
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                server = socket.create_connection(("127.0.0.1", self._target))
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def test_through_a_proxy(api: FakeApi, authority: Authority, tmp_path: Path) -> None:
    """The certificate is that of the server, and stop() reaches through the proxy too."""
    tunnel = Tunnel(api.port)
    kubeconfig = Path(api.kubeconfig(tmp_path / "k"))
    kubeconfig.write_text(kubeconfig.read_text().replace("127.0.0.1", "localhost"))
    environment = {"HTTPS_PROXY": tunnel.url}
    with contextlib.closing(tunnel):
        direct = Connection(str(kubeconfig), environment=environment)
        with direct.get("/version", read_timeout=5) as answer:
            assert answer.status == 200
        assert tunnel.asked == []  # this very host is never behind a proxy

        api.tls = authority.server(["api.example"])
        kubeconfig.write_text(kubeconfig.read_text().replace("localhost", "api.example"))
        through = Connection(str(kubeconfig), environment=environment)
        with through.get("/version", read_timeout=5) as answer:
            assert answer.status == 200
            answer.read()
        assert tunnel.asked[0].startswith(f"CONNECT api.example:{api.port} HTTP/1.".encode())
        ended = threading.Event()

        def watch() -> None:
            with (
                contextlib.suppress(Trouble),
                through.get("/api/v1/services?watch=1&resourceVersion=1", read_timeout=30) as answer,
            ):
                list(answer.pieces())
            ended.set()

        threading.Thread(target=watch, daemon=True).start()
        api.wait_for(lambda: api.watching(SERVICE))
        through.close()
        assert ended.wait(5)
