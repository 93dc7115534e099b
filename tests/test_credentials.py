"""Credentials of every kind, and what happens when they are replaced: proxy.credentials, through a Connection."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from integration.apiserver.certificates import Authority
from integration.apiserver.server import FakeApi
from proxy import kubeconfig as kubeconfigs
from proxy.apiserver import Connection
from proxy.credentials import EARLY, Credentials
from proxy.errors import SourceError
from proxy.events import Put
from proxy.kubeconfig import read_access
from proxy.trouble import UNREACHABLE, Trouble
from tests.test_apiserver import Following, service, shown


def services(connection: Connection) -> int:
    """The status of a list of Services."""
    with connection.get("/api/v1/services", read_timeout=5) as answer:
        answer.read()
        return answer.status


def written(api: FakeApi, tmp_path: Path, user: Any = None, **cluster: Any) -> str:
    """A kubeconfig for the server, with this user, and these of the cluster's fields."""
    file = tmp_path / "kubeconfig"
    config = yaml.safe_load(Path(api.kubeconfig(file)).read_text())
    if user is not None:
        config["users"][0]["user"] = user
    config["clusters"][0]["cluster"] |= {name.replace("_", "-"): value for name, value in cluster.items()}
    replace(file, yaml.safe_dump(config))
    return str(file)


def replace(file: Path, text: str) -> None:
    """As the kubelet and careful people do: at once, another file."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


# -- Tokens ------------------------------------------------------------------------------------------------------------


def test_a_bearer_token(tmp_path: Path) -> None:
    with FakeApi(token="s3cret") as api:
        assert services(Connection(written(api, tmp_path))) == 200
        assert services(Connection(written(api, tmp_path, {"token": "wrong"}))) == 401
        assert services(Connection(written(api, tmp_path, {}))) == 403


def test_a_user_with_a_password(api: FakeApi, tmp_path: Path) -> None:
    services(Connection(written(api, tmp_path, {"username": "me", "password": "pä"})))
    assert api.requests[-1].headers["Authorization"] == "Basic " + base64.b64encode("me:pä".encode()).decode()


def test_a_token_file_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    replace(tmp_path / "token", "first\n")
    with FakeApi(token="first") as api:
        connection = Connection(written(api, tmp_path, {"tokenFile": "token", "token": "unused"}))
        assert services(connection) == 200
        replace(tmp_path / "token", "second\n")
        api.token = "second"
        assert services(connection) == 200
        assert connection.send("POST", "/api/v1/namespaces/default/events", b"{}").status != 401


def test_watches_go_on_with_the_new_token(tmp_path: Path) -> None:
    replace(tmp_path / "token", "first")
    with FakeApi(token="first") as api:
        follower = Following(api, written(api, tmp_path, {"tokenFile": "token"}))
        follower.begin()
        replace(tmp_path / "token", "second")
        api.token = "second"
        api.cut_watches()
        api.put(service("web"))
        assert shown(follower.until(Put)) == [("put", "web")]
        follower.source.stop()


@pytest.mark.parametrize("content", [None, ""])
def test_a_token_file_that_is_lost_for_a_while(tmp_path: Path, content: str | None) -> None:
    replace(tmp_path / "token", "first")
    with FakeApi(token="first") as api, capture_logs() as logs:
        connection = Connection(written(api, tmp_path, {"tokenFile": "token"}))
        (tmp_path / "token").unlink()
        if content is not None:
            replace(tmp_path / "token", content)
        assert [services(connection), services(connection)] == [200, 200]
        replace(tmp_path / "token", "second")
        api.token = "second"
        assert services(connection) == 200
    (entry,) = [entry for entry in logs if entry["event"] == "api_credentials_not_refreshed"]
    assert "token" in entry["cause"]


def test_the_service_account_of_a_pod(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeApi(token="first", tls=authority.server(), ca=authority.ca) as api:
        replace(tmp_path / "token", "first")
        replace(tmp_path / "ca.crt", Path(authority.ca).read_text())
        monkeypatch.setattr(kubeconfigs, "ACCOUNT", str(tmp_path))
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api.port)}
        connection = Connection(environment=environment)
        assert connection.server == f"127.0.0.1:{api.port}"
        assert services(connection) == 200
        api.token = "second"
        replace(tmp_path / "token", "second")
        assert services(connection) == 200


@pytest.mark.parametrize("token", ["s3cret\r\nX-Evil: 1", "s3crét"])
def test_a_token_that_is_no_token_is_not_shown(api: FakeApi, tmp_path: Path, token: str) -> None:
    with pytest.raises(SourceError, match="the token has characters") as caught:
        Connection(written(api, tmp_path, {"token": token}))
    assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), ("", "empty")])
def test_a_token_file_that_is_missing_from_the_start(
    api: FakeApi, tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
    with pytest.raises(SourceError, match=words) as caught:
        Connection(written(api, tmp_path, {"tokenFile": "token"}))
    assert caught.value.what == str(tmp_path / "token")


def test_tokens_are_never_logged(tmp_path: Path) -> None:
    with FakeApi(token="s3cret") as api, capture_logs() as logs:
        follower = Following(api, written(api, tmp_path))
        follower.begin()
        api.token = "0ther"
        api.cut_watches()
        api.wait_for(lambda: any(entry["event"] == "api_unauthorized" for entry in logs) or api._watches == [])
        follower.source.stop()
    assert logs
    assert "s3cret" not in repr(logs)


def test_a_kubeconfig_that_is_replaced(tmp_path: Path) -> None:
    """With another server, too."""
    with FakeApi(token="a") as first, FakeApi(token="b") as second:
        connection = Connection(written(first, tmp_path))
        assert services(connection) == 200
        written(second, tmp_path)
        assert services(connection) == 200
        assert connection.server == f"127.0.0.1:{second.port}"
    assert (len(first.requests), len(second.requests)) == (1, 1)


def test_a_kubeconfig_that_is_spoilt_while_we_run(tmp_path: Path) -> None:
    with FakeApi(token="a") as api, capture_logs() as logs:
        connection = Connection(written(api, tmp_path))
        (tmp_path / "kubeconfig").write_text("users: [s3cret")
        assert [services(connection), services(connection)] == [200, 200]
    (entry,) = [entry for entry in logs if entry["event"] == "api_credentials_not_refreshed"]
    assert "not YAML" in entry["cause"]
    assert "s3cret" not in repr(entry)


# -- Credential plugins ------------------------------------------------------------------------------------------------


def plugin(tmp_path: Path, script: str) -> dict[str, Any]:
    file = tmp_path / "plugin"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(file), "interactiveMode": "Never"}}


def printing(tmp_path: Path, **status: str) -> dict[str, Any]:
    """A plugin that gives this, and counts how often it is run."""
    said = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    (tmp_path / "said").write_text(json.dumps(said))
    return plugin(tmp_path, f"echo >>{tmp_path}/runs; cat {tmp_path}/said")


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text())


def test_a_plugin_is_asked_again_after_a_refusal_and_only_then(tmp_path: Path) -> None:
    with FakeApi(token="first") as api:
        connection = Connection(written(api, tmp_path, printing(tmp_path, token="first")))
        assert [services(connection) for _ in range(3)] == [200] * 3
        assert runs(tmp_path) == 1
        api.token = "second"
        printing(tmp_path, token="second")
        assert [services(connection), services(connection), services(connection)] == [401, 200, 200]
        assert runs(tmp_path) == 2


def test_a_plugin_is_asked_again_before_its_token_expires(tmp_path: Path) -> None:
    now = 1_700_000_000.0  # 2023-11-14T22:13:20Z
    user = printing(tmp_path, token="first", expirationTimestamp="2023-11-14T22:23:20Z")
    file = tmp_path / "k"
    api = FakeApi(port=1)
    file.write_text(Path(written(api, tmp_path, user)).read_text())
    clock = [now]
    credentials = Credentials(lambda: read_access(str(file), "", {}), str(file), clock=lambda: clock[0])
    clock[0] = now + 600 - EARLY - 1
    credentials.refresh()
    assert runs(tmp_path) == 1
    printing(tmp_path, token="second", expirationTimestamp="2023-11-14T23:23:20Z")
    clock[0] = now + 600 - EARLY
    assert credentials.refresh() == {"Authorization": "Bearer second"}
    assert runs(tmp_path) == 2


def test_a_plugin_may_give_a_certificate(tmp_path: Path, authority: Authority) -> None:
    cert, key = (Path(file).read_text() for file in authority.client("me"))
    user = printing(tmp_path, clientCertificateData=cert, clientKeyData=key)
    with FakeApi(tls=authority.server(), ca=authority.ca, client_ca=authority.ca) as api:
        assert services(Connection(written(api, tmp_path, user))) == 200


def test_a_plugin_that_fails_later_leaves_what_was_good(tmp_path: Path) -> None:
    with FakeApi(token="first") as api, capture_logs() as logs:
        connection = Connection(written(api, tmp_path, printing(tmp_path, token="first")))
        api.fail(401)
        plugin(tmp_path, "exit 3")
        assert [services(connection), services(connection)] == [401, 200]
    assert "process returned 3" in next(e["cause"] for e in logs if e["event"] == "api_credentials_not_refreshed")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no session >&2; exit 3", r"process returned 3. no session .*run the credential plugin"),
        ("echo nonsense", "failed to decode process output"),
        ("echo '{}'", "malformed response"),
    ],
)
def test_a_plugin_that_fails(api: FakeApi, tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        Connection(written(api, tmp_path, plugin(tmp_path, script)))


@pytest.mark.parametrize(
    ("entry", "words"),
    [({"command": "x"}, "missing key 'apiVersion'"), ({"apiVersion": "v1", "command": "/nowhere"}, "No such file")],
)
def test_a_plugin_that_cannot_be_run(api: FakeApi, tmp_path: Path, entry: dict[str, str], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        Connection(written(api, tmp_path, {"exec": entry, "client-key-data": ""}))


def test_a_plugin_without_the_package_that_runs_it(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.config", None)
    with pytest.raises(SourceError, match="install the Python package kubernetes"):
        Connection(written(api, tmp_path, printing(tmp_path, token="first")))


# -- Certificates ------------------------------------------------------------------------------------------------------


def encoded(file: str) -> str:
    return base64.b64encode(Path(file).read_bytes()).decode()


def user_of(pair: tuple[str, str], as_data: bool = False) -> dict[str, str]:
    names = ("client-certificate", "client-key")
    if as_data:
        return {f"{name}-data": encoded(file) for name, file in zip(names, pair, strict=True)}
    return dict(zip(names, pair, strict=True))


@pytest.mark.parametrize("as_data", [False, True])
def test_a_client_certificate(authority: Authority, tmp_path: Path, as_data: bool) -> None:
    with FakeApi(tls=authority.server(), ca=authority.ca, client_ca=authority.ca) as api:
        user = user_of(authority.client("me"), as_data)
        ca = {"certificate_authority_data": encoded(authority.ca)} if as_data else {}
        assert services(Connection(written(api, tmp_path, user, **ca))) == 200


def test_nothing_secret_is_written_to_a_disk(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with FakeApi(tls=authority.server(), ca=authority.ca, client_ca=authority.ca) as api:
        assert services(Connection(written(api, tmp_path, user_of(authority.client("me"), True)))) == 200
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_client_certificate_that_is_replaced(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    """First the key, then the certificate, as it happens: in between they do not fit, and the old ones are used."""
    names = [tmp_path / "me.crt", tmp_path / "me.key"]
    for file, source in zip(names, stranger.client("me"), strict=True):
        replace(file, Path(source).read_text())
    with FakeApi(tls=authority.server(), ca=authority.ca, client_ca=authority.ca) as api, capture_logs() as logs:
        connection = Connection(written(api, tmp_path, user_of((str(names[0]), str(names[1])))))
        with pytest.raises(Trouble):
            services(connection)
        new = authority.client("me")
        replace(names[1], Path(new[1]).read_text())
        with pytest.raises(Trouble):
            services(connection)
        replace(names[0], Path(new[0]).read_text())
        assert services(connection) == 200
    (entry,) = [entry for entry in logs if entry["event"] == "api_credentials_not_refreshed"]
    assert "the key is not that of the certificate" in entry["cause"]


def test_new_requests_use_new_connections_when_the_certificate_is_replaced(
    authority: Authority, tmp_path: Path
) -> None:
    names = [tmp_path / "me.crt", tmp_path / "me.key"]
    for file, source in zip(names, authority.client("old"), strict=True):
        replace(file, Path(source).read_text())
    with FakeApi(tls=authority.server(), ca=authority.ca, client_ca=authority.ca) as api:
        api.rules["old"] = []  # may do nothing
        connection = Connection(written(api, tmp_path, user_of((str(names[0]), str(names[1])))))
        assert services(connection) == 403
        for file, source in zip(names, authority.client("new"), strict=True):
            replace(file, Path(source).read_text())
        assert services(connection) == 200


def test_an_authority_that_is_replaced(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    replace(tmp_path / "ca.crt", Path(stranger.ca).read_text())
    with FakeApi(tls=authority.server()) as api:
        connection = Connection(written(api, tmp_path, certificate_authority=str(tmp_path / "ca.crt")))
        with pytest.raises(Trouble) as caught:
            services(connection)
        assert caught.value.status == UNREACHABLE
        replace(tmp_path / "ca.crt", Path(stranger.ca).read_text() + Path(authority.ca).read_text())
        assert services(connection) == 200


def test_a_volume_of_the_kubelet(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    """The files are links through ..data, which is replaced: their own names never change."""
    for name, ca in (("1", stranger.ca), ("2", authority.ca)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ca.crt").write_text(Path(ca).read_text())
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "ca.crt").symlink_to("..data/ca.crt")
    with FakeApi(tls=authority.server()) as api:
        connection = Connection(written(api, tmp_path, certificate_authority=str(tmp_path / "ca.crt")))
        with pytest.raises(Trouble):
            services(connection)
        (tmp_path / "..new").symlink_to("2")
        os.replace(tmp_path / "..new", tmp_path / "..data")
        assert services(connection) == 200


def test_a_server_certificate_that_is_replaced(authority: Authority, tmp_path: Path) -> None:
    with FakeApi(tls=authority.server(), ca=authority.ca) as api:
        connection = Connection(written(api, tmp_path))
        assert services(connection) == 200
        api.tls = authority.server()
        api.stop()
        api.start()
        assert services(connection) == 200


@pytest.mark.parametrize(
    ("cluster", "user", "words"),
    [
        ({"certificate_authority": "nowhere.crt"}, {}, "CA certificate in .*nowhere.crt: No such file"),
        ({"certificate_authority": "junk"}, {}, "CA certificate in .*junk: not PEM"),
        ({"certificate_authority_data": base64.b64encode(b"junk").decode()}, {}, "CA certificate in the kubeconfig"),
        ({"certificate_authority_data": base64.b64encode(b"\xff").decode()}, {}, "CA certificate in the kubeconfig"),
        ({"certificate_authority_data": "%%%"}, {}, "certificate-authority-data is not base64"),
        ({}, {"client-certificate": "junk", "client-key": "junk"}, "certificate and key in .*junk and .*junk: not PEM"),
        ({}, {"client-certificate": "junk"}, "no client key"),
        ({}, {"client-key": "junk"}, "no client certificate"),
    ],
)
def test_wrong_certificates(
    cluster: dict[str, str], user: dict[str, str], words: str, tmp_path: Path, authority: Authority
) -> None:
    (tmp_path / "junk").write_text("junk\n")
    api = FakeApi(port=1, tls=(authority.ca, authority.ca))
    with pytest.raises(SourceError, match=words) as caught:
        Connection(written(api, tmp_path, user, **cluster))
    assert caught.value.what == str(tmp_path / "kubeconfig")


def test_a_key_with_a_password_is_not_asked_for(authority: Authority, tmp_path: Path) -> None:
    import subprocess

    cert, key = authority.client("me")
    locked = str(tmp_path / "locked.key")
    command = ["openssl", "ec", "-aes256", "-passout", "pass:x", "-in", key, "-out", locked]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    api = FakeApi(port=1, tls=authority.server(), ca=authority.ca)
    with pytest.raises(SourceError, match="the key is encrypted"):
        Connection(written(api, tmp_path, user_of((cert, locked))))
