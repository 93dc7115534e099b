"""Metrics over TLS: who is let in, and what happens when the files change."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from integration.apiserver.certificates import Authority
from integration.processes import free_port
from proxy.config_values import HostPort
from proxy.errors import ConfigError
from proxy.http_connections import SHARE, Connections
from proxy.http_message import Request, Response
from proxy.page_server import PageServer
from proxy.tls import Certificates, TlsSocket, wrapping
from proxy.tls_files import TlsFiles, tls_files
from rules.objects import Family
from tests.deployed import wait_until

GET = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"
BIG = bytes(1 << 22)


class Files:
    """Where the server's files are: replaced as the kubelet does it, all at once, by another target of a symlink."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self._directory, self._count = directory, 0
        (directory / "..0").mkdir(parents=True)
        (directory / "..data").symlink_to("..0")
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (directory / name).symlink_to(f"..data/{name}")
        self.paths = TlsFiles(*(str(directory / name) for name in ("tls.crt", "tls.key", "ca.crt")))
        self.rotate(authority, authority)

    def rotate(self, authority: Authority, clients: Authority, *, key: str = "") -> None:
        """The server's certificate is this authority's, and clients are to have the other's."""
        self._count += 1
        new = self._directory / f"..{self._count}"
        new.mkdir()
        certificate, its_key = authority.server()
        for source, name in ((certificate, "tls.crt"), (key or its_key, "tls.key"), (clients.ca, "ca.crt")):
            shutil.copy(source, new / name)
        link = self._directory / "..new"
        link.symlink_to(new.name)
        link.rename(self._directory / "..data")


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> Files:
    return Files(tmp_path / "files", authority)


@pytest.fixture
def port(files: Files) -> Iterator[int]:
    with served(files.paths) as port:
        yield port


@contextlib.contextmanager
def served(files: TlsFiles) -> Iterator[int]:
    def answer(request: Request) -> Response:
        return Response(HTTPStatus.OK, BIG if request.path == "/big" else b"hello")

    port = free_port()
    wrap = wrapping(Certificates(files))
    server = PageServer("metrics", "metricsBindAddress", HostPort("127.0.0.1", port), [Family.IPV4], answer, wrap=wrap)
    with capture_logs() as logs:
        server.start()
        try:
            wait_until(lambda: can_connect(port), "it listens")
            yield port
        finally:
            server.stop()
    assert "metrics_failure" not in {event["event"] for event in logs}


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def client(trusted: Authority, identity: tuple[str, str] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=trusted.ca)
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    if identity:
        context.load_cert_chain(*identity)
    return context


def ask(port: int, context: ssl.SSLContext, said: bytes = GET) -> bytes:
    """All that is answered, up to TLS's own end; without it, an error."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    with context.wrap_socket(sock, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as tls:
        tls.sendall(said)
        answered = b""
        while piece := tls.recv(1 << 16):
            answered += piece
        return answered


def is_kept_out(port: int, context: ssl.SSLContext) -> bool:
    try:
        return not ask(port, context)
    except OSError:
        return True


# -- Who is let in -----------------------------------------------------------------------------------------------------


def test_a_client_with_a_certificate(port: int, authority: Authority) -> None:
    context = client(authority, authority.client("prometheus"))
    assert ask(port, context).startswith(b"HTTP/1.1 200 OK") and ask(port, context).endswith(b"hello")


def test_a_big_answer(port: int, authority: Authority) -> None:
    answered = ask(port, client(authority, authority.client("prometheus")), GET.replace(b"/metrics", b"/big"))
    assert answered.endswith(BIG)


def test_others(port: int, authority: Authority, stranger: Authority) -> None:
    assert is_kept_out(port, client(authority, None))
    assert is_kept_out(port, client(authority, stranger.client("prometheus")))
    assert is_kept_out(port, client(authority, authority.client("prometheus", expired=True)))
    assert is_kept_out(port, client(authority, authority.server()))  # it is no client's
    assert not is_kept_out(port, client(authority, authority.client("prometheus")))


def test_without_the_clients_authorities_anybody_is_let_in(files: Files, authority: Authority) -> None:
    with served(TlsFiles(files.paths.certificate, files.paths.key)) as port:
        assert ask(port, client(authority, None)).endswith(b"hello")


def test_old_versions_of_tls(port: int, authority: Authority) -> None:
    for version, works in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
        context = client(authority, authority.client("prometheus"))
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1") if not works else contextlib.nullcontext():
            context.minimum_version = context.maximum_version = version
        assert is_kept_out(port, context) is not works


def test_http_without_tls(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(GET)
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in sock.recv(1000)


def test_one_file_may_have_both_certificate_and_key(tmp_path: Path, authority: Authority) -> None:
    certificate, key = map(Path, authority.server())
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(key.read_text() + certificate.read_text())
    with served(TlsFiles(str(bundle), str(bundle))) as port:
        assert ask(port, client(authority, None)).endswith(b"hello")


# -- Files that change -------------------------------------------------------------------------------------------------


def test_rotation(port: int, files: Files, authority: Authority, stranger: Authority) -> None:
    before, after = client(authority, authority.client("prometheus")), client(stranger, authority.client("prometheus"))
    assert ask(port, before) and is_kept_out(port, after)
    files.rotate(stranger, authority)  # another server's certificate
    assert ask(port, after) and is_kept_out(port, before)
    files.rotate(stranger, stranger)  # other clients
    assert is_kept_out(port, after)
    assert ask(port, client(stranger, stranger.client("prometheus")))


def spoil_key(files: Files, authority: Authority) -> None:
    files.rotate(authority, authority, key=authority.client("x")[1])


def spoil_authorities(files: Files, authority: Authority) -> None:
    Path(files.paths.client_ca).write_text("nothing")


def spoil_certificate(files: Files, authority: Authority) -> None:
    Path(files.paths.certificate).unlink()


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (spoil_key, "the key is not the certificate's"),
        (spoil_authorities, "there is no certificate in the authorities' file"),
        (spoil_certificate, "No such file or directory"),
    ],
)
def test_a_bad_rotation_keeps_what_there_was(
    spoil: Callable[[Files, Authority], None], cause: str, files: Files, authority: Authority, stranger: Authority
) -> None:
    certificates = Certificates(files.paths)
    before = certificates.context()
    spoil(files, authority)
    with capture_logs() as logs:
        assert certificates.context() is before and certificates.context() is before
    (event,) = logs  # once
    assert (event["event"], event["cause"]) == ("metrics_certificates_unusable", cause)
    if spoil is spoil_certificate:
        Path(files.paths.certificate).symlink_to("..data/tls.crt")
    files.rotate(stranger, authority)
    with capture_logs() as logs:
        assert certificates.context() is not before
    assert [one["event"] for one in logs] == ["metrics_certificates_read"]


def test_files_that_did_not_change_are_not_read_again(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = Certificates(files.paths)
    before = certificates.context()
    os.chmod(files.paths.key, 0)
    assert certificates.context() is before


@pytest.mark.parametrize("spoil", [spoil_key, spoil_authorities, spoil_certificate])
def test_bad_files_at_the_start(
    spoil: Callable[[Files, Authority], None], files: Files, authority: Authority, tmp_path: Path
) -> None:
    spoil(files, authority)
    with pytest.raises(ConfigError, match=r"tls\.crt"):
        Certificates(files.paths)


def test_a_key_with_a_passphrase_is_not_asked_for(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.server()
    locked = tmp_path / "locked.key"
    subprocess.run(["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked], check=True)
    with pytest.raises(ConfigError, match="passphrase"):
        Certificates(TlsFiles(certificate, str(locked)))


def test_flags_that_do_not_go_alone() -> None:
    assert tls_files("", "", "") is None
    assert tls_files("c", "k", "") == TlsFiles("c", "k")
    for given, missing in ((("c", "", ""), "key"), (("", "k", ""), "cert"), (("", "", "a"), "cert")):
        with pytest.raises(ConfigError, match=f"--metrics-tls-{missing}-file"):
            tls_files(*given)


# -- Clients that take their time --------------------------------------------------------------------------------------


def test_slow_handshakes_keep_nobody_out(port: int, authority: Authority) -> None:
    """As many as there is room for say nothing, and others begin a handshake and stop."""
    hello = client_hello(authority)
    slow: list[socket.socket] = []
    try:
        for i in range(2 * SHARE):
            with contextlib.suppress(OSError):  # those that there is no room for are hung up on, some before they know
                slow.append(socket.create_connection(("127.0.0.1", port), timeout=10))
                slow[-1].sendall(hello[: i * 5])
        assert len(slow) >= SHARE
        context = client(authority, authority.client("prometheus"))
        threads = [
            threading.Thread(target=is_kept_out, args=(port, context)) for _ in range(4)
        ]  # perhaps: all come from one address
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        # Not before the oldest have had their GRACE_SECONDS: this client, too, comes from their address.
        wait_until(lambda: not is_kept_out(port, context), "the oldest make room")
    finally:
        for sock in slow:
            sock.close()


def client_hello(authority: Authority) -> bytes:
    """What a client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client(authority, None).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_a_handshake_in_pieces(files: Files, authority: Authority) -> None:
    """Each piece is a turn of the loop, and none waits."""
    loop = asyncio.new_event_loop()
    connections = Connections(loop, lambda *_: Response(HTTPStatus.OK, b"hello"), wrapping(Certificates(files.paths)))
    near, far = socket.socketpair()
    near.settimeout(5)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    identity = authority.client("prometheus")
    tls = client(authority, identity).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    connections.add(far, "127.0.0.1", (bytes(4), 1))
    answered = b""
    has_asked = False
    try:
        for _ in range(200):
            with contextlib.suppress(ssl.SSLWantReadError):
                if not has_asked:
                    tls.do_handshake()
                    tls.write(GET)
                    has_asked = True
                while piece := tls.read(1 << 16):
                    answered += piece
                break
            said = outgoing.read()
            for i in range(0, len(said), 400):
                near.sendall(said[i : i + 400])
                loop.call_soon(loop.stop)
                loop.run_forever()
            loop.call_soon(loop.stop)
            loop.run_forever()
            near.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                incoming.write(near.recv(1 << 16))
        assert answered.endswith(b"hello")
    finally:
        connections.close()
        near.close()
        loop.close()


def test_the_socket_never_waits(files: Files) -> None:
    near, far = socket.socketpair()
    far.setblocking(False)
    served = wrapping(Certificates(files.paths))(far)
    assert isinstance(served, TlsSocket)
    with pytest.raises(BlockingIOError):
        served.recv(100)
    near.sendall(GET)
    with pytest.raises(OSError, match="HTTP"):
        served.recv(100)
    served.close()
    near.close()
