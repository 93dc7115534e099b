"""proxy.kubeconfig: what a kubeconfig and a pod's environment say, and what is said of those that are wrong."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.errors import SourceError
from proxy.kubeconfig import ACCOUNT, IN_CLUSTER, Access, Pem, read_access, without_password

GOOD: dict[str, Any] = {
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "s3cret"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


def written(tmp_path: Path, cluster: Any = None, user: Any = None, **top: Any) -> str:
    config = dict(GOOD)
    if cluster is not None:
        config["clusters"] = [{"name": "c", "cluster": cluster}]
    if user is not None:
        config["users"] = [{"name": "u", "user": user}]
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config | {key.replace("_", "-"): value for key, value in top.items()}))
    return str(file)


def read(tmp_path: Path, cluster: Any = None, user: Any = None, server: str = "") -> Access:
    return read_access(written(tmp_path, cluster, user), server, {})


def test_the_current_context_is_read(tmp_path: Path) -> None:
    access = read(tmp_path, {"server": "https://api:6443/", "tls-server-name": "k8s", "proxy-url": "http://p:1"})
    assert access == Access(
        source=str(tmp_path / "kubeconfig"),
        servers=("https://api:6443",),
        server_name="k8s",
        proxy="http://p:1",
        token="s3cret",
        cwd=str(tmp_path),
    )


def test_among_several(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        clusters=[{"name": n, "cluster": {"server": f"http://{n}:1"}} for n in "ab"],
        users=[{"name": n, "user": {"token": n}} for n in "ab"],
        contexts=[{"name": n, "context": {"cluster": n, "user": n}} for n in "ab"],
        current_context="b",
    )
    access = read_access(file, "", {})
    assert (access.servers, access.token) == (("http://b:1",), "b")


def test_the_kubeconfig_of_kubeadm_for_kube_proxy(tmp_path: Path) -> None:
    """As its ConfigMap has it."""
    (tmp_path / "kubeconfig.conf").write_text(f"""\
apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority: {ACCOUNT}/ca.crt
    server: https://192.168.1.10:6443
  name: default
contexts:
- context:
    cluster: default
    namespace: default
    user: default
  name: default
current-context: default
users:
- name: default
  user:
    tokenFile: {ACCOUNT}/token
""")
    access = read_access(str(tmp_path / "kubeconfig.conf"), "", {})
    assert access.servers == ("https://192.168.1.10:6443",)
    assert (access.ca, access.token_file) == (Pem(f"{ACCOUNT}/ca.crt"), f"{ACCOUNT}/token")
    assert access.verify
    assert access.files == [f"{ACCOUNT}/ca.crt"]


def test_files_are_beside_the_kubeconfig(tmp_path: Path) -> None:
    user = {"client-certificate": "pki/a.crt", "client-key": "/etc/a.key", "tokenFile": "token"}
    access = read(tmp_path, {"server": "https://a", "certificate-authority": "ca.crt"}, user)
    assert access.ca.file == str(tmp_path / "ca.crt")
    assert access.certificate.file == str(tmp_path / "pki/a.crt")
    assert access.key.file == "/etc/a.key"
    assert access.token_file == str(tmp_path / "token")
    assert access.files == [access.ca.file, access.certificate.file, access.key.file]


def test_data_goes_before_files(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    user = {"client-certificate": "a", "client-certificate-data": data, "client-key-data": data + "\n"}
    access = read(tmp_path, {"server": "https://a", "certificate-authority-data": data}, user)
    assert [access.ca.data, access.certificate.data, access.key.data] == [b"PEM"] * 3
    assert access.files == []


def test_names_without_values_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    access = read(tmp_path, {"server": "https://a", "certificate-authority": None}, {"token": None, "exec": None})
    assert (access.ca, access.token, access.plugin) == (Pem(), "", None)


def test_a_user_may_be_missing(tmp_path: Path) -> None:
    file = written(tmp_path, contexts=[{"name": "x", "context": {"cluster": "c"}}])
    assert read_access(file, "", {}).token == ""


def test_other_servers_than_the_kubeconfig_names(tmp_path: Path) -> None:
    access = read(tmp_path, server="https://a:6443/, https://b:6443,https://a:6443")
    assert access.servers == ("https://a:6443", "https://b:6443")
    assert access.token == "s3cret"


def test_a_server_alone_gets_no_credentials() -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    access = read_access("", "http://a:1", environment)
    assert (access.servers, access.token_file, access.ca) == (("http://a:1",), "", Pem())


@pytest.mark.parametrize(
    ("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_the_account_of_the_pod(host: str, server: str) -> None:
    access = read_access("", "", {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"})
    assert access == Access(IN_CLUSTER, (server,), Pem(f"{ACCOUNT}/ca.crt"), token_file=f"{ACCOUNT}/token")


def test_outside_of_a_pod_without_a_kubeconfig() -> None:
    with pytest.raises(SourceError, match=r"in-cluster configuration: KUBERNETES_SERVICE_HOST.*name a kubeconfig"):
        read_access("", "", {})


# -- Those that are wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (GOOD | {"current-context": ""}, "no current-context"),
        ({key: value for key, value in GOOD.items() if key != "current-context"}, "no current-context"),
        (GOOD | {"current-context": "other"}, "no context named 'other'"),
        (GOOD | {"clusters": []}, "no cluster named 'c'"),
        (GOOD | {"users": None}, "no user named 'u'"),
        (GOOD | {"clusters": [{"name": "c", "cluster": {}}]}, "the server's address is none"),
        (GOOD | {"clusters": [{"name": "c"}]}, "missing required field `cluster` - at `$.clusters[0]`"),
        (GOOD | {"clusters": [{"name": "c", "cluster": {"proxy-url": "x"}}]}, "the server's address is none"),
        (GOOD | {"clusters": [{"name": "c", "cluster": {"server": "10.0.0.1:6443"}}]}, "address is 10.0.0.1:6443"),
        (GOOD | {"clusters": [{"name": "c", "cluster": {"server": "https://"}}]}, "the server's address is https:"),
        (GOOD | {"clusters": [{"name": "c", "cluster": {"server": "https://u:pw@a:x"}}]}, "address is https://a:x"),
        (GOOD | {"clusters": [{"name": "c", "cluster": {"server": "https://[::1:1"}}]}, "address is https://[::1:1"),
        (
            GOOD | {"users": [{"name": "u", "user": {"token": 5}}]},
            "Expected `str`, got `int` - at `$.users[0].user.token`",
        ),
        (GOOD | {"users": {"name": "u"}}, "not a kubeconfig"),
        (GOOD | {"users": [{"name": "u", "user": {"client-key-data": "s3cret%"}}]}, "client-key-data is not base64"),
        (GOOD | {"users": [{"name": "u", "user": {"auth-provider": {"name": "oidc"}}}]}, "not supported"),
        ([1, 2], "not a kubeconfig"),
        ("text", "not a kubeconfig"),
        (None, "the file is empty"),
    ],
)
def test_a_wrong_kubeconfig(config: Any, words: str, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("" if config is None else yaml.safe_dump(config))
    with pytest.raises(SourceError) as caught:
        read_access(str(file), "", {})
    assert caught.value.what == str(file)
    assert words in caught.value.cause
    assert caught.value.remedy
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [b", "not YAML"),
        (b"token: s3cret\n\t- :", "not YAML: .* in line 2"),
        (b"\x00", "not YAML"),
        (b"\xff", "not YAML"),
    ],
)
def test_a_kubeconfig_that_is_no_yaml(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_bytes(content)
    with pytest.raises(SourceError, match=words) as caught:
        read_access(str(tmp_path / "kubeconfig"), "", {})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(("name", "words"), [("nowhere", "No such file or directory"), ("", "Is a directory")])
def test_a_kubeconfig_that_is_not_there(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        read_access(str(tmp_path / name), "", {})
    assert caught.value.what == str(tmp_path / name)


@pytest.mark.parametrize("server", ["a:1", "ftp://a", "https://a,b", "https://a:0", "https://:5"])
def test_servers_that_are_none(server: str) -> None:
    with pytest.raises(SourceError, match="write it as https://HOST:PORT"):
        read_access("", server, {})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:p@h:1/x", "http://h:1/x"),
        ("h:1", "h:1"),
        ("", ""),
        ("socks5://u@h", "socks5://h"),
        ("http://h/@", "http://h/@"),
    ],
)
def test_urls_are_shown_without_a_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
