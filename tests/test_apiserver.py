"""proxy.apiserver against the stand-in API server, over real sockets; and the stand-in against recorded exchanges."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from integration.apiserver.server import FakeApi, Object, error_line, load
from proxy.apiserver import ApiSource, Connection
from proxy.errors import SourceError
from proxy.events import Delete, Event, Failed, Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, KINDS, NODE, SERVICE, SERVICE_CIDR
from proxy.watch import BROKEN, UNREACHABLE, Trouble, Watcher
from tests.test_watch import Recording


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as server:
        yield server


def service(name: str, **meta: Any) -> Object:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"} | meta,
        "spec": {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ports": ports},
    }


def endpoint_slice(name: str, **labels: str) -> Object:
    return {
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": "web"} | labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.244.0.2"]}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def node(name: str, zone: str = "a") -> Object:
    return {"kind": "Node", "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}, "spec": {}}


class Following:
    """A running source, and what it has told so far."""

    def __init__(self, api: FakeApi, kubeconfig: str) -> None:
        self.api = api
        self.inbox = Inbox()
        self.connection = Connection(kubeconfig)
        self.source = ApiSource(self.connection, self.inbox, "here")
        self.events: list[Event] = []

    def until(self, *kinds: type[Event], timeout: float = 10) -> list[Event]:
        """Take events until one of each of these types came, in this order; returns those that came, oldest first."""
        seen: list[Event] = []
        wanted = list(kinds)
        while wanted:
            events = self.inbox.take(timeout)
            assert events, f"nothing came; waited for {wanted}, had {seen}"
            seen += events
            for event in events:
                if wanted and isinstance(event, wanted[0]):
                    wanted.pop(0)
        self.events += seen
        return seen

    def begin(self) -> dict[str, list[str]]:
        """Start, wait for the four lists and watches. Returns the names of the objects by kind."""
        self.source.start()
        found = self.until(*[Replace] * 4)
        self.api.wait_for(self.api.watching)
        return {
            event.kind: [obj.metadata.name for obj in event.objects] for event in found if isinstance(event, Replace)
        }


@pytest.fixture
def following(api: FakeApi, tmp_path: Path) -> Iterator[Following]:
    follower = Following(api, api.kubeconfig(tmp_path / "kubeconfig"))
    yield follower
    follower.source.stop()


def shown(events: list[Event]) -> list[tuple[str, str]]:
    names = []
    for event in events:
        if isinstance(event, Put):
            names.append(("put", event.obj.metadata.name))
        elif isinstance(event, Delete):
            names.append(("delete", event.name))
        else:
            names.append((type(event).__name__.lower(), getattr(event, "kind", "")))
    return names


def alive(source: ApiSource) -> list[str]:
    return [thread.name for thread in source._threads if thread.is_alive()]


# -- The source --------------------------------------------------------------------------------------------------------


def test_it_lists_what_concerns_this_node(api: FakeApi, following: Following) -> None:
    api.put(service("web"))
    api.put(service("foreign", labels={"service.kubernetes.io/service-proxy-name": "other"}))
    api.put(endpoint_slice("web-a"))
    api.put(endpoint_slice("headless", **{"service.kubernetes.io/headless": ""}))
    api.put({"kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}})
    api.put(node("here"))
    api.put(node("there"))
    assert following.begin() == {
        SERVICE: ["web"],
        ENDPOINT_SLICE: ["web-a"],
        SERVICE_CIDR: ["kubernetes"],
        NODE: ["here"],
    }


def test_it_follows_changes(api: FakeApi, following: Following) -> None:
    api.put(endpoint_slice("web-a"))
    following.begin()
    api.put(service("web"))
    assert shown(following.until(Put)) == [("put", "web")]
    api.put(endpoint_slice("web-a", **{"service.kubernetes.io/headless": ""}))  # leaves the selector
    assert shown(following.until(Delete)) == [("delete", "web-a")]
    api.put(node("there"))
    api.put(node("here", zone="b"))
    assert shown(following.until(Put)) == [("put", "here")]
    api.delete("Service", "default", "web")
    assert shown(following.until(Delete)) == [("delete", "web")]
    assert sorted(api.asked()) == ["list"] * 4 + ["watch"] * 4


def test_a_burst_arrives_whole_and_in_order(api: FakeApi, following: Following) -> None:
    following.begin()
    for i in range(500):
        api.put(service(f"s{i}"))
    assert shown(following.until(*[Put] * 500)) == [("put", f"s{i}") for i in range(500)]


def test_a_long_list_comes_compressed(api: FakeApi, following: Following) -> None:
    for i in range(600):
        api.put(service(f"s{i}", annotations={"filler": "x" * 200}))
    sent: list[int] = []
    with following.connection.get("/api/v1/services", read_timeout=5, compressed=True) as answer:
        assert answer.header("Content-Encoding") == "gzip"
        sent.append(len(answer.read()))
    assert sent[0] > 128 << 10
    assert len(following.begin()[SERVICE]) == 600
    assert {r.headers["Accept-Encoding"] for r in api.requests if r.verb == "watch"} == {"identity"}


def test_a_broken_connection_goes_on_without_a_list(api: FakeApi, following: Following) -> None:
    following.begin()
    api.put(service("one"))
    following.until(Put)
    api.inject(SERVICE, b'{"type":"ADDED","object":{"kind":"Serv')
    api.cut_watches()
    api.put(service("two"))
    assert shown(following.until(Put)) == [("put", "two")]
    api.wait_for(api.watching)
    assert api.asked().count("list") == 4
    assert [r.query["resourceVersion"] for r in api.requests if (r.kind, r.verb) == (SERVICE, "watch")] == ["1", "2"]


def test_an_ended_watch_goes_on_without_a_list(api: FakeApi, following: Following) -> None:
    following.begin()
    api.bookmark()
    api.end_watches()
    api.wait_for(lambda: api.asked().count("watch") == 8)
    api.put(service("web"))
    assert shown(following.until(Put)) == [("put", "web")]
    assert api.asked().count("list") == 4


def test_a_bookmark_keeps_the_version_young(api: FakeApi, following: Following) -> None:
    following.begin()
    for _ in range(5):
        api.put(node("there"))  # moves the version of the cluster, unseen
    api.put(node("here"))
    following.until(Put)
    api.bookmark(SERVICE)
    api.put(service("web"))  # behind the bookmark in the stream: when it is here, so is the bookmark
    following.until(Put)
    api.compact()
    api.end_watches(SERVICE)
    api.wait_for(lambda: api.asked(SERVICE) == ["list", "watch", "watch"])
    api.put(service("other"))
    assert shown(following.until(Put)) == [("put", "other")]


def test_expired_lists_again(api: FakeApi, following: Following) -> None:
    api.put(service("old"))
    following.begin()
    api.fail(503, kind=SERVICE, verb="watch")  # keeps it away while the history goes
    api.cut_watches(SERVICE)
    api.delete("Service", "default", "old")
    api.put(service("new"))
    api.compact()
    replaced = [event for event in following.until(Replace) if isinstance(event, Replace)][-1]
    assert [obj.metadata.name for obj in replaced.objects] == ["new"]
    assert api.asked(SERVICE).count("list") == 2


def test_expired_in_a_running_stream_lists_again(api: FakeApi, following: Following) -> None:
    following.begin()
    api.inject(SERVICE, error_line(410, "Expired", "too old resource version: 1 (9)"))
    (replaced,) = following.until(Replace)
    assert isinstance(replaced, Replace)
    assert replaced.kind == SERVICE


def test_an_unreadable_object_leaves_the_others(api: FakeApi, following: Following) -> None:
    bad = service("bad")
    bad["spec"]["ports"] = [{"port": "http"}]
    api.put(bad)
    api.put(service("good"))
    assert following.begin()[SERVICE] == ["good"]
    assert following.source.left_out == 1
    api.put(service("bad"))
    assert shown(following.until(Put)) == [("put", "bad")]
    assert following.source.left_out == 0


def test_an_older_server_without_service_cidrs(api: FakeApi, following: Following) -> None:
    api.absent.add(SERVICE_CIDR)
    following.source.start()
    found = following.until(*[Replace] * 4)
    assert {event.kind for event in found if isinstance(event, Replace)} == set(KINDS)
    api.wait_for(lambda: api.watching(SERVICE, ENDPOINT_SLICE, NODE))
    assert api.asked(SERVICE_CIDR) == ["list"]


def test_a_server_that_is_away_at_first(tmp_path: Path) -> None:
    api = FakeApi().start()
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    api.stop()
    with capture_logs() as logs:
        follower = Following(api, kubeconfig)
        follower.source.start()
        assert follower.inbox.take(0.5) == []
        api.put(service("web"))
        api.start()
        try:
            found = follower.until(*[Replace] * 4)
        finally:
            follower.source.stop()
            api.stop()
    assert len(found) == 4
    away = [entry for entry in logs if entry["event"] == "api_unreachable"]
    assert sorted(entry["kind"] for entry in away) == sorted(KINDS)
    assert {entry["cause"] for entry in away} == {"Connection refused"}


def test_a_server_that_restarts(api: FakeApi, following: Following) -> None:
    following.begin()
    api.stop()
    api.put(service("web"))
    api.start()
    assert shown(following.until(Put)) == [("put", "web")]
    assert api.asked().count("list") == 4


@pytest.mark.parametrize("code", [401, 403, 429, 500, 503])
def test_refusals_pass(api: FakeApi, following: Following, code: int) -> None:
    api.fail(code, times=4)
    api.put(service("web"))
    assert following.begin()[SERVICE] == ["web"]


def test_a_bug_ends_the_agent_and_not_the_thread_alone(
    api: FakeApi, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall(self: Watcher) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Watcher, "run", fall)
    following.source.start()
    events = following.until(*[Failed] * 4)
    assert isinstance(events[0], Failed)
    assert str(events[0].error) == "a bug"


# -- stop --------------------------------------------------------------------------------------------------------------


def test_stop_ends_threads_that_wait_for_events(api: FakeApi, following: Following) -> None:
    following.begin()
    following.source.stop()
    assert alive(following.source) == []


def test_stop_ends_threads_that_wait_for_an_answer(api: FakeApi, following: Following) -> None:
    api.stall(times=4)
    following.source.start()
    api.wait_for(lambda: len(api.requests) == 4)
    following.source.stop()
    assert alive(following.source) == []


def test_stop_ends_threads_that_pause(api: FakeApi, following: Following) -> None:
    api.fail(503, times=inf, retry_after=60)
    following.source.start()
    api.wait_for(lambda: len(api.requests) == 4)
    following.source.stop()
    assert alive(following.source) == []


def test_stop_without_start(following: Following) -> None:
    following.source.stop()
    assert alive(following.source) == []


def test_a_closed_connection_stays_closed(api: FakeApi, following: Following) -> None:
    following.connection.close()
    with pytest.raises(Trouble), following.connection.get("/version", read_timeout=1):
        pass
    assert api.requests == []


# -- The connection ----------------------------------------------------------------------------------------------------


def test_silence_has_an_end(api: FakeApi, following: Following) -> None:
    api.stall()
    with pytest.raises(Trouble) as caught, following.connection.get("/api/v1/services", read_timeout=0.1):
        pass
    assert (caught.value.status, caught.value.cause) == (UNREACHABLE, "timed out")


def test_silence_in_a_stream_has_an_end(api: FakeApi, following: Following) -> None:
    path = "/api/v1/services?watch=1&resourceVersion=1"
    with following.connection.get(path, read_timeout=0.1) as answer, pytest.raises(Trouble) as caught:
        list(answer.pieces())
    assert (caught.value.status, caught.value.cause) == (BROKEN, "timed out")


def test_redirects_are_not_followed(api: FakeApi, following: Following) -> None:
    api.fail(302, headers={"Location": "/api/v1/nodes"})
    with following.connection.get("/api/v1/services", read_timeout=1) as answer:
        assert answer.status == 302
    assert [request.path for request in api.requests] == ["/api/v1/services"]


def test_importing_costs_nothing_and_the_models_are_never_loaded(api: FakeApi, tmp_path: Path) -> None:
    program = """
        import sys
        import proxy.apiserver
        assert not {"kubernetes", "urllib3", "requests"} & set(sys.modules)
        proxy.apiserver.Connection(sys.argv[1])
        assert "kubernetes.client.models.v1_service" not in sys.modules
    """
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), kubeconfig], check=True, timeout=60)


def services(connection: Connection) -> int:
    """The status of a list of Services."""
    with connection.get("/api/v1/services", read_timeout=5) as answer:
        answer.read()
        return answer.status


def test_a_bearer_token(tmp_path: Path) -> None:
    with FakeApi(token="s3cret") as api:
        assert services(Connection(api.kubeconfig(tmp_path / "k"))) == 200
        assert services(Connection(api.kubeconfig(tmp_path / "k", token="wrong"))) == 401
        assert services(Connection(api.kubeconfig(tmp_path / "k", username="me", password="pw"))) == 401
        assert api.requests == [api.requests[0]]


def test_a_token_file_that_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    with FakeApi(token="first") as api:
        follower = Following(api, api.kubeconfig(tmp_path / "k", tokenFile=str(file)))
        follower.begin()
        file.write_text("second\n")
        api.token = "second"
        api.end_watches()
        api.cut_watches()
        api.put(service("web"))
        assert shown(follower.until(Put)) == [("put", "web")]
        follower.source.stop()


def test_the_service_account_of_a_pod(tmp_path: Path, tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.config import incluster_config

    with FakeApi(token="first", tls=tls.server) as api:
        (tmp_path / "token").write_text("first")
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", tls.ca)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(api.port))
        connection = Connection()
        assert connection.server == f"127.0.0.1:{api.port}"
        assert services(connection) == 200
        api.token = "second"
        (tmp_path / "token").write_text("second")
        assert [services(connection), services(connection)] == [401, 200]


def test_outside_of_a_pod_without_a_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SourceError, match=r"in-cluster configuration: Service host/port is not set.*name a kubeconfig"):
        Connection()


def test_another_server_than_the_kubeconfig_names(api: FakeApi, tmp_path: Path) -> None:
    kubeconfig = api.kubeconfig(tmp_path / "k", token="t")
    text = Path(kubeconfig).read_text().replace(api.url, "http://192.0.2.1:1")
    Path(kubeconfig).write_text(text)
    connection = Connection(kubeconfig, server=api.url + "/")
    assert services(connection) == services(connection) == 200  # the package's refresh sets the address again
    assert api.requests[-1].path == "/api/v1/services"
    assert services(Connection(server=api.url)) == 200
    assert "Authorization" not in api.requests[-1].headers


def test_a_proxy_is_used(api: FakeApi, tmp_path: Path) -> None:
    kubeconfig = Path(api.kubeconfig(tmp_path / "k"))
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": "http://api.invalid:6443", "proxy-url": api.url}
    kubeconfig.write_text(yaml.safe_dump(config))
    assert services(Connection(str(kubeconfig))) == 200
    assert api.requests[-1].path == "http://api.invalid:6443/api/v1/services"


def exec_user(tmp_path: Path, script: str) -> dict[str, Any]:
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}


def with_user(api: FakeApi, tmp_path: Path, user: Any) -> str:
    kubeconfig = Path(api.kubeconfig(tmp_path / "k"))
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = user
    kubeconfig.write_text(yaml.safe_dump(config))
    return str(kubeconfig)


def test_a_credential_plugin_is_asked_again_after_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "now").write_text("first")
    head = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"\'"$(cat '
    user = exec_user(tmp_path, f"echo '{head}{tmp_path}/now)\"'\"}}}}'")
    with FakeApi(token="first") as api:
        connection = Connection(with_user(api, tmp_path, user))
        assert services(connection) == 200
        api.token = "second"
        (tmp_path / "now").write_text("second")
        assert [services(connection), services(connection)] == [401, 200]


def test_a_credential_plugin_that_fails(api: FakeApi, tmp_path: Path) -> None:
    user = exec_user(tmp_path, "echo no session >&2; exit 3")
    with pytest.raises(SourceError, match=r"process returned 3. no session .*run the credential plugin"):
        Connection(with_user(api, tmp_path, user))


def test_a_token_that_is_no_token_is_not_shown(api: FakeApi, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="the token has characters") as caught:
        Connection(api.kubeconfig(tmp_path / "k", token="s3cret\r\nX-Evil: 1"))
    assert "s3cret" not in str(caught.value)


def test_tokens_are_never_logged(tmp_path: Path) -> None:
    with FakeApi(token="s3cret") as api, capture_logs() as logs:
        follower = Following(api, api.kubeconfig(tmp_path / "k"))
        follower.begin()
        api.cut_watches()
        api.token = "0ther"
        api.wait_for(lambda: len(api.requests) >= 8 or any(e["event"] == "api_unauthorized" for e in logs))
        follower.source.stop()
    assert logs
    assert "s3cret" not in repr(logs)


# -- Kubeconfigs that are wrong ----------------------------------------------------------------------------------------

GOOD = {
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "s3cret"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GOOD | {"current-context": ""}, "Expected object with name"),
        ({key: value for key, value in GOOD.items() if key != "current-context"}, "Expected key current-context"),
        (GOOD | {"current-context": "other"}, "Expected object with name other"),
        (GOOD | {"clusters": []}, "Expected object with name c"),
        (GOOD | {"clusters": [{"name": "c", "cluster": {}}]}, "the server's address is none"),
        (GOOD | {"clusters": [{"name": "c"}]}, "Expected key cluster"),
        (GOOD | {"clusters": [{"name": "c", "cluster": {"proxy-url": "x"}}]}, "the server's address is none"),
        (
            GOOD | {"clusters": [{"name": "c", "cluster": {"server": "10.0.0.1:6443"}}]},
            "the server's address is 10.0.0.1",
        ),
        (GOOD | {"clusters": [{"name": "c", "cluster": {"server": "https://"}}]}, "the server's address is https:"),
        (GOOD | {"users": [{"name": "u", "token": "s3cret"}]}, "Expected key user"),
        (GOOD | {"users": [{"name": "u", "user": {"tokenFile": "nowhere"}}]}, "No such file"),
        (GOOD | {"users": {"name": "u"}}, "not a kubeconfig"),
        (
            GOOD | {"users": [{"name": "u", "user": {"client-key-data": "s3cret", "exec": {"command": "x"}}}]},
            "missing key 'apiVersion'",
        ),
        ([1, 2], "not a kubeconfig"),
        ("text", "not a kubeconfig"),
        (None, "file is empty"),
    ],
)
def test_a_wrong_kubeconfig(config: Any, words: str, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("" if config is None else yaml.safe_dump(config))
    with pytest.raises(SourceError) as caught:
        Connection(str(file))
    assert str(tmp_path) in caught.value.what
    assert words in caught.value.cause
    assert caught.value.remedy
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"a: [b", "not YAML"), (b"token: s3cret\n\t- :", "not YAML: .* in line 2"), (b"\x00", "not YAML")],
)
def test_a_kubeconfig_that_is_no_yaml(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_bytes(content)
    with pytest.raises(SourceError, match=words) as caught:
        Connection(str(tmp_path / "kubeconfig"))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(("name", "words"), [("nowhere", "No such file or directory"), ("", "Is a directory")])
def test_a_kubeconfig_that_is_not_there(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        Connection(str(tmp_path / name))
    assert caught.value.what == str(tmp_path / name)


# -- TLS ---------------------------------------------------------------------------------------------------------------


class Tls:
    """A certificate for 127.0.0.1 that is its own authority, and one for a client."""

    def __init__(self, directory: Path) -> None:
        self.server = self._make(directory, "server", "subjectAltName=IP:127.0.0.1")
        self.client = self._make(directory, "client", "extendedKeyUsage=clientAuth")
        self.ca = self.server[0]

    def _make(self, directory: Path, name: str, extension: str) -> tuple[str, str]:
        cert, key = str(directory / f"{name}.crt"), str(directory / f"{name}.key")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", "2", "-subj", f"/CN={name}", "-addext", extension, "-keyout", key, "-out", cert]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return cert, key


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificates, and is not installed")
    return Tls(tmp_path_factory.mktemp("tls"))


def test_https_from_start_to_stop(tls: Tls, tmp_path: Path) -> None:
    with FakeApi(tls=tls.server) as api:
        api.put(service("web"))
        follower = Following(api, api.kubeconfig(tmp_path / "k"))
        assert follower.begin()[SERVICE] == ["web"]
        api.put(service("other"))
        assert shown(follower.until(Put)) == [("put", "other")]
        follower.source.stop()
        assert alive(follower.source) == []


@pytest.mark.parametrize("as_data", [False, True])
def test_a_client_certificate(tls: Tls, tmp_path: Path, as_data: bool) -> None:
    cert, key = tls.client
    user = {"client_certificate": cert, "client_key": key}
    if as_data:
        user = {f"{name}_data": base64.b64encode(Path(file).read_bytes()).decode() for name, file in user.items()}
    with FakeApi(tls=tls.server, client_ca=cert) as api:
        assert services(Connection(api.kubeconfig(tmp_path / "k", **user))) == 200
        with pytest.raises(Trouble):
            services(Connection(api.kubeconfig(tmp_path / "k")))


def _cluster(api: FakeApi, file: Path, **cluster: Any) -> str:
    config = yaml.safe_load(Path(api.kubeconfig(file)).read_text())
    config["clusters"][0]["cluster"] = {"server": api.url} | {k.replace("_", "-"): v for k, v in cluster.items()}
    file.write_text(yaml.safe_dump(config))
    return str(file)


def test_a_server_of_another_authority_is_not_believed(tls: Tls, tmp_path: Path) -> None:
    with FakeApi(tls=tls.server) as api, pytest.raises(Trouble) as caught:
        services(Connection(_cluster(api, tmp_path / "k", certificate_authority=tls.client[0])))
    assert caught.value.status == UNREACHABLE
    assert "certificate verify failed" in caught.value.cause


def test_an_authority_that_is_replaced(tls: Tls, tmp_path: Path) -> None:
    with FakeApi(tls=tls.server) as api:
        kubeconfig = _cluster(api, tmp_path / "k", certificate_authority=tls.client[0])
        connection = Connection(kubeconfig)
        with pytest.raises(Trouble):
            services(connection)
        _cluster(api, tmp_path / "k", certificate_authority=tls.ca)
        assert services(connection) == 200


def test_verification_can_be_turned_off_and_is_then_said(tls: Tls, tmp_path: Path) -> None:
    with FakeApi(tls=tls.server) as api, capture_logs() as logs:
        assert services(Connection(_cluster(api, tmp_path / "k", insecure_skip_tls_verify=True))) == 200
    assert [entry["event"] for entry in logs] == ["api_certificate_not_verified"]


@pytest.mark.parametrize(
    ("cluster", "user", "words"),
    [
        ({"certificate_authority": "nowhere.crt"}, {}, "nowhere.crt"),
        ({"certificate_authority": "junk"}, {}, "CA certificate in .*junk"),
        ({"certificate_authority_data": base64.b64encode(b"junk").decode()}, {}, "CA certificate in "),
        ({"certificate_authority_data": "%%%"}, {}, "CA certificate in |not a kubeconfig"),
        ({}, {"client_certificate": "junk", "client_key": "junk"}, "client certificate and key in .*junk and .*junk"),
        ({}, {"client_certificate": "junk"}, "client certificate and key in .*junk"),
    ],
)
def test_wrong_certificates(cluster: dict[str, str], user: dict[str, str], words: str, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk\n")
    api = FakeApi(port=1, tls=("junk", "junk"))
    kubeconfig = Path(api.kubeconfig(tmp_path / "k", **user))
    _cluster_of_file(kubeconfig, api.url, cluster)
    with pytest.raises(SourceError, match=words) as caught:
        Connection(str(kubeconfig))
    assert caught.value.what == str(kubeconfig)


def _cluster_of_file(kubeconfig: Path, url: str, cluster: dict[str, str]) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": url} | {k.replace("_", "-"): v for k, v in cluster.items()}
    kubeconfig.write_text(yaml.safe_dump(config))


# -- The stand-in answers as the real one did --------------------------------------------------------------------------


def ask(api: FakeApi, path: str, token: str = "") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=10)
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.headers), body


def put_at(api: FakeApi, kind: str, obj: Object) -> None:
    """Store an object under the resourceVersion that it has."""
    api.version = int(obj["metadata"]["resourceVersion"]) - 1
    api.put({"kind": kind} | obj)


@pytest.mark.parametrize(
    ("number", "kind"), [("02", SERVICE), ("03", ENDPOINT_SLICE), ("06", SERVICE_CIDR), ("07", NODE)]
)
def test_the_stand_in_lists_as_recorded(api: FakeApi, number: str, kind: str) -> None:
    recording = Recording(number)
    answer = json.loads(recording.body)
    for item in sorted(answer["items"], key=lambda item: int(item["metadata"]["resourceVersion"])):
        put_at(api, kind, item)
    api.version = int(answer["metadata"]["resourceVersion"])
    status, headers, body = ask(api, recording.path)
    assert status == 200
    assert body.strip() == recording.body.strip()
    assert headers["Content-Type"] == recording.headers["Content-Type"]


def test_the_stand_in_pages_as_recorded(api: FakeApi) -> None:
    first, second = Recording("04"), Recording("05")
    for page in (first, second):
        for item in json.loads(page.body)["items"]:
            put_at(api, SERVICE, item)
    api.version = 219
    assert ask(api, first.path)[2].strip() == first.body.strip()
    assert ask(api, second.path)[2].strip() == second.body.strip()


def test_the_stand_in_watches_as_recorded(api: FakeApi) -> None:
    recording = Recording("08")
    api.version = 219
    for line in recording.body.splitlines()[:3]:
        event = json.loads(line)
        if event["type"] == "DELETED":
            api.delete(SERVICE, "default", "web4")
        else:
            put_at(api, SERVICE, event["object"])
    status, headers, body = ask(api, recording.path.replace("timeoutSeconds=4", "timeoutSeconds=2.1"))
    assert status == 200
    assert headers["Transfer-Encoding"] == "chunked"
    assert body == recording.body


def test_the_stand_in_deletes_what_leaves_a_selector_as_recorded(api: FakeApi) -> None:
    recording = Recording("10")
    before = json.loads(recording.body)["object"]
    api.version = 226
    api.put(before)
    labels = before["metadata"]["labels"] | {"service.kubernetes.io/headless": ""}
    api.version = 228
    api.put(before | {"metadata": before["metadata"] | {"labels": labels}})
    assert ask(api, recording.path.replace("timeoutSeconds=3", "timeoutSeconds=0.1"))[2] == recording.body


@pytest.mark.parametrize("number", ["13", "14", "15", "16", "17", "18", "19", "20", "21"])
def test_the_stand_in_refuses_as_recorded(number: str) -> None:
    recording = Recording(number)
    with FakeApi(token="right", watch_seconds=0.1) as api:
        api.version = 252 if number == "16" else 239
        api.compact()
        token = {"19": "wrong", "20": ""}.get(number, "right")
        status, headers, body = ask(api, recording.path, token)
    assert status == recording.status
    assert body.strip() == recording.body.strip()
    assert headers.get("Retry-After") == recording.headers.get("Retry-After")


def test_the_stand_in_reads_manifests(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([service("one"), None, {"kind": "Pod"}]))
    (tmp_path / "b.json").write_text(json.dumps({"kind": "List", "items": [service("two"), node("n")]}))
    assert [obj["metadata"]["name"] for obj in load([tmp_path])] == ["one", "two", "n"]
