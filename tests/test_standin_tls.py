"""The stand-in with TLS: certificates good and bad, and faults under it."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from pathlib import Path

import pytest

from integration.apiserver import FakeApi, certificates
from integration.apiserver.faults import Place
from tests.raw_client import A_MOMENT, PATIENCE, over_tls, service


def test_certificates_good_and_bad(authority: certificates.Authority, tmp_path: Path) -> None:
    other = certificates.Authority(tmp_path / "other", "other-ca")
    with FakeApi(tls=authority.server(), ca=authority.ca) as api:
        assert over_tls(api, authority.ca)[0] == 200
        for certificate, words in (
            (authority.server(expired=True), "expired"),
            (authority.server(["api.example.com"]), "IP address mismatch"),
            (other.server(), "unable to get local issuer|self.signed"),
        ):
            api.tls = certificate  # what is replaced on disk counts for the next connection
            with pytest.raises(ssl.SSLCertVerificationError, match=words):
                over_tls(api, authority.ca)
        api.tls = authority.server()
        assert over_tls(api, authority.ca)[0] == 200


def test_client_certificates_name_the_user(authority: certificates.Authority, tmp_path: Path) -> None:
    other = certificates.Authority(tmp_path / "other", "other-ca")
    with FakeApi(tls=authority.server(), client_ca=authority.ca) as api:
        api.rules = {"someone": []}
        assert over_tls(api, authority.ca, authority.client("admin", "system:masters"))[0] == 200
        code, said = over_tls(api, authority.ca, authority.client("someone"))
        assert code == 403
        assert 'User "someone" cannot list' in said["message"]
        for client in (None, other.client("admin"), authority.client("admin", expired=True)):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                over_tls(api, authority.ca, client)


@pytest.mark.parametrize("place", ["start", "headers", 0.5])
def test_resets_under_tls(authority: certificates.Authority, place: Place) -> None:
    with FakeApi(tls=authority.server()) as api:
        api.put(service("web", 5000))
        api.reset(at=place)
        with pytest.raises(
            (OSError, http.client.HTTPException, ValueError)
        ):  # in headers: an end, to OpenSSL's callers
            over_tls(api, authority.ca)
        assert over_tls(api, authority.ca)[0] == 200


def test_a_server_that_says_nothing_at_all(authority: certificates.Authority) -> None:
    with FakeApi(tls=authority.server()) as api:
        api.silent = True
        context = ssl.create_default_context(cafile=authority.ca)
        with pytest.raises(TimeoutError), socket.create_connection(("127.0.0.1", api.port), timeout=A_MOMENT) as raw:
            context.wrap_socket(raw, server_hostname="127.0.0.1")
        api.heal()
        assert over_tls(api, authority.ca)[0] == 200


def test_a_server_that_stops_breaks_connections_that_never_asked(authority: certificates.Authority) -> None:
    with FakeApi(tls=authority.server()) as api, socket.create_connection(("127.0.0.1", api.port)) as raw:
        raw.settimeout(PATIENCE)
        while not api._connections:
            time.sleep(0.01)
        api.stop()
        assert raw.recv(1) == b""
