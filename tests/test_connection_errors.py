"""What is said when a connection fails: proxy.connection_errors, on errors that were made and on such as happen."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from integration.apiserver.certificates import Authority
from integration.apiserver.server import FakeApi
from proxy.apiserver import Connection
from proxy.connection_errors import words
from proxy.trouble import UNREACHABLE, Trouble, refusal


def connection(api: FakeApi, tmp_path: Path, user: Any = None, **cluster: Any) -> Connection:
    file = tmp_path / "kubeconfig"
    config = yaml.safe_load(Path(api.kubeconfig(file)).read_text())
    config["clusters"][0]["cluster"] |= {name.replace("_", "-"): value for name, value in cluster.items()}
    config["users"][0]["user"] = user or {}
    file.write_text(yaml.safe_dump(config))
    return Connection(str(file), environment={})


def status(made: Connection) -> int:
    with made.get("/api/v1/services", read_timeout=5) as answer:
        answer.read()
        return answer.status


def cause(made: Connection) -> str:
    """Why the server cannot be reached."""
    with pytest.raises(Trouble) as caught:
        status(made)
    assert caught.value.status == UNREACHABLE
    assert "\n" not in caught.value.cause
    return caught.value.cause


def test_tls_that_works(authority: Authority, tmp_path: Path) -> None:
    with FakeApi(tls=authority.server(), ca=authority.ca) as api:
        assert status(connection(api, tmp_path)) == 200


def test_an_expired_certificate(authority: Authority, tmp_path: Path) -> None:
    with FakeApi(tls=authority.server(expired=True), ca=authority.ca) as api:
        assert "the server's certificate, or one that it rests on, has expired" in cause(connection(api, tmp_path))


def test_an_authority_that_we_do_not_know(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    with FakeApi(tls=authority.server(), ca=stranger.ca) as api:
        assert "none of the authorities that we have: see certificate-authority" in cause(connection(api, tmp_path))
    with FakeApi(tls=authority.server(), ca=authority.ca) as api:
        config = yaml.safe_load(Path(api.kubeconfig(tmp_path / "k")).read_text())
        del config["clusters"][0]["cluster"]["certificate-authority"]
        (tmp_path / "k").write_text(yaml.safe_dump(config))
        assert "none of the authorities that we have" in cause(Connection(str(tmp_path / "k"), environment={}))


def test_a_certificate_for_others(authority: Authority, tmp_path: Path) -> None:
    with FakeApi(tls=authority.server(["kubernetes", "api.example", "10.96.0.1"]), ca=authority.ca) as api:
        said = cause(connection(api, tmp_path))
    assert "the server's certificate is for another host" in said
    for name in ("127.0.0.1", "kubernetes", "api.example", "10.96.0.1"):
        assert name in said


def test_a_name_to_expect_instead(authority: Authority, tmp_path: Path) -> None:
    with FakeApi(tls=authority.server(["kubernetes"]), ca=authority.ca) as api:
        assert status(connection(api, tmp_path, tls_server_name="kubernetes")) == 200
        said = cause(connection(api, tmp_path, tls_server_name="other"))
    assert "for another host" in said
    assert "other" in said


def test_verification_can_be_turned_off_and_is_then_said(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    with FakeApi(tls=authority.server(["kubernetes"]), ca=stranger.ca) as api, capture_logs() as logs:
        assert status(connection(api, tmp_path, insecure_skip_tls_verify=True)) == 200
    assert [entry["event"] for entry in logs] == ["api_certificate_not_verified"]


def test_a_server_that_wants_a_client_certificate(authority: Authority, tmp_path: Path) -> None:
    with FakeApi(tls=authority.server(), ca=authority.ca, client_ca=authority.ca) as api:
        made = connection(api, tmp_path)
        assert "the server wants a client certificate, and we have none" in (cause(made) for _ in range(50))


def test_client_certificates_that_are_refused(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    with FakeApi(tls=authority.server(), ca=authority.ca, client_ca=authority.ca) as api:
        for pair, why in (
            (stranger.client("me"), "does not know who signed it"),
            (authority.client("me", expired=True), "it has expired"),
        ):
            made = connection(api, tmp_path, dict(zip(("client-certificate", "client-key"), pair, strict=True)))
            # The server closes the connection with our request unread: what it said may be lost on the way.
            said = next(said for said in (cause(made) for _ in range(50)) if "client certificate" in said)
            assert said.startswith("the server refuses our client certificate")
            assert why in said


def test_tls_where_there_is_none(authority: Authority, tmp_path: Path) -> None:
    with FakeApi() as api:
        url = api.url.replace("http:", "https:")
        made = connection(api, tmp_path, server=url, certificate_authority=authority.ca)
        assert "the server does not speak TLS at this port" in cause(made)


def test_no_tls_where_there_is_some() -> None:
    """Go's servers answer a plain request on a TLS port so."""
    answer = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        made = Connection(server=f"http://127.0.0.1:{listener.getsockname()[1]}", environment={})
        with made.get("/", read_timeout=5) as got:
            trouble = refusal(got.status, got.header("Retry-After"), got.read())
    assert trouble.cause == "HTTP 400: Client sent an HTTP request to an HTTPS server."


def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = cause(Connection(server="http://api.example:6443", environment={}))
    assert said == "the host's name cannot be looked up: Name or service not known"


def unverified(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "alert")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (unverified(9, "certificate is not yet valid"), "not yet valid: is this node's clock right?"),
        (unverified(10, "certificate has expired"), "has expired (or this node's clock is ahead)"),
        (unverified(18, "self-signed certificate"), "none of the authorities that we have"),
        (unverified(62, "Hostname mismatch,\n for 'x'"), "for another host: Hostname mismatch, for 'x'"),
        (unverified(99, "something else"), "cannot be verified: something else"),
        (alert("TLSV1_ALERT_UNKNOWN_CA"), "does not know who signed it"),
        (alert("SSLV3_ALERT_CERTIFICATE_EXPIRED"), "refuses our client certificate: it has expired"),
        (alert("SSLV3_ALERT_BAD_CERTIFICATE"), "refuses our client certificate"),
        (alert("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "wants a client certificate"),
        (alert("WRONG_VERSION_NUMBER"), "does not speak TLS"),
        (alert("TLSV1_ALERT_PROTOCOL_VERSION"), "no TLS version in common"),
        (alert("BAD_THING"), "TLS: bad thing"),
        (ssl.SSLEOFError(8, "EOF occurred"), "closed in the middle of TLS"),
        (TimeoutError("The read operation timed out"), "timed out"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (http.client.IncompleteRead(b"x"), "the connection was closed in the middle of an answer"),
        (http.client.RemoteDisconnected("Remote end closed"), "without an answer"),
        (http.client.BadStatusLine("\x15\x03\x01"), "is not HTTP"),
        (OSError("closed"), "closed"),
        (ValueError(), "ValueError"),
    ],
)
def test_words(error: Exception, said: str) -> None:
    assert said in words(error)


def test_the_innermost_cause_is_told() -> None:
    def deep() -> None:
        try:
            raise ConnectionResetError(104, "Connection reset by peer")
        except OSError as inner:
            raise RuntimeError(f"at {id(inner)}") from inner

    fall: Callable[[], None] = deep
    with pytest.raises(RuntimeError) as caught:
        fall()
    assert words(caught.value) == "Connection reset by peer"
