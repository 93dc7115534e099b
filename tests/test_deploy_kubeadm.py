"""In the place of kubeadm's kube-proxy: its ConfigMap as it is, an account with the rights of deploy/, a real start."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.apiserver import FakeApi
from proxy.apiserver import Connection
from proxy.node_events import EventRecorder
from tests import container, kustomize
from tests.container import NODE, Mount
from tests.deployed import ADDRESS, WAIT, probe, running, wait_until
from tests.kustomize import Key, Object
from tests.netns import Namespace
from tests.objects import endpoint_slice, service

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate, and is not installed"),
]

ACCOUNT = "system:serviceaccount:kube-system:kube-proxy-nft"
ACCOUNT_FILES = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN = "the-token-of-the-pod"
CONFIG = container.REPO / "tests" / "data" / "config" / "kubeadm.yaml"


@pytest.fixture(scope="module")
def objects() -> dict[Key, Object]:
    return kustomize.render(container.REPO / "deploy" / "kubeadm")


def granted(objects: dict[Key, Object]) -> list[Object]:
    """The rules of all roles. The stand-in does not look at namespaces: tests/test_deploy.py does."""
    return [rule for key, obj in objects.items() if key[0] in ("Role", "ClusterRole") for rule in obj["rules"]]


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """What a kubelet mounts of a service account; the key is the API server's, and is not mounted."""
    directory = tmp_path / "account"
    directory.mkdir()
    (directory / "token").write_text(TOKEN)
    certificate, key = str(directory / "ca.crt"), str(tmp_path / "server.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=apiserver", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-out", certificate, "-keyout", key]
    subprocess.run(command, check=True, capture_output=True)
    return directory


@pytest.fixture
def api(namespace: Namespace, account: Path, objects: dict[Key, Object]) -> Iterator[FakeApi]:
    """The control plane, which listens in the node's network. The account may do what deploy/ grants."""
    server = FakeApi(
        tls=(str(account / "ca.crt"), str(account.parent / "server.key")),
        tokens={TOKEN: ACCOUNT},
        rules={ACCOUNT: granted(objects)},
    )
    address = {"type": "InternalIP", "address": ADDRESS}
    server.put({"kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE}, "status": {"addresses": [address]}})
    server.put(service("web", "10.96.0.1"))
    server.put(endpoint_slice("web", "10.244.0.1"))
    assert namespace.run("ip", "link", "set", "lo", "up").returncode == 0
    namespace.inside(server.start)
    yield server
    server.stop()


@pytest.fixture
def mounts(tmp_path: Path, account: Path, api: FakeApi, objects: dict[Key, Object]) -> list[Mount]:
    """The ConfigMap kube-proxy, as kubeadm makes it, and the account."""
    (tmp_path / "kube-proxy").mkdir()
    (tmp_path / "kube-proxy" / "config.conf").write_text(CONFIG.read_text())
    kubeconfig = f"""
apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority: {ACCOUNT_FILES}/ca.crt
    server: {api.url}
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
    tokenFile: {ACCOUNT_FILES}/token
"""
    (tmp_path / "kube-proxy" / "kubeconfig.conf").write_text(kubeconfig)
    return [*container.mounts(daemonset(objects), tmp_path), Mount(account, Path(ACCOUNT_FILES))]


def daemonset(objects: dict[Key, Object]) -> Object:
    return objects["DaemonSet", "kube-system", "kube-proxy-nft"]


def test_it_does_kube_proxys_work_with_the_rights_that_it_has(
    namespace: Namespace, api: FakeApi, mounts: list[Mount], objects: dict[Key, Object]
) -> None:
    with running(namespace, daemonset(objects), mounts) as agent:
        agent.wait_for("programmed")
        kinds = ("Service", "EndpointSlice", "ServiceCIDR", "Node")
        api.wait_for(lambda: api.watching(*kinds), timeout=WAIT)
        api.put(service("late", "10.96.0.2"))
        wait_until(lambda: "10.96.0.2" in namespace.nft("list", "table", "ip", "kube-proxy-nft"), agent.events)
        assert agent.terminate() == 0
    assert [event for event in agent.complaints if event["event"].startswith(("api_", "node_event"))] == []
    assert "default/web:http" in namespace.nft("list", "table", "ip", "kube-proxy-nft")


def test_its_events_are_taken(tmp_path: Path, objects: dict[Key, Object]) -> None:
    """A first one is created, its repetitions change it."""
    with FakeApi(tokens={TOKEN: ACCOUNT}, rules={ACCOUNT: granted(objects)}) as api:
        recorder = EventRecorder(Connection(api.kubeconfig(tmp_path / "kubeconfig", token=TOKEN)), NODE)
        recorder.start()
        recorder.record("Starting", "here it is")
        wait_until(lambda: bool(api.objects("Event")), "the Event")
        recorder.record("Starting", "here it is")
        recorder.stop(timeout=WAIT)
        [event] = api.objects("Event")
        assert (event["metadata"]["namespace"], event["series"]["count"]) == ("default", 2)


def test_without_an_api_server_the_agent_is_left_to_wait(
    namespace: Namespace, api: FakeApi, mounts: list[Mount], objects: dict[Key, Object]
) -> None:
    """A restart would not bring the server back. The rules of an earlier agent go on meanwhile."""
    api.stop()
    with running(namespace, daemonset(objects), mounts) as agent:
        agent.wait_for("api_unreachable")
        for name in ("startupProbe", "livenessProbe"):
            wait_until(lambda name=name: probe(namespace, daemonset(objects), name) == 200, name)  # type: ignore[misc]


@pytest.mark.parametrize("resource", ["services", "endpointslices", "servicecidrs", "nodes"])
def test_each_right_is_needed(
    namespace: Namespace, api: FakeApi, mounts: list[Mount], objects: dict[Key, Object], resource: str
) -> None:
    [rules] = api.rules.values()
    api.rules[ACCOUNT] = [rule for rule in rules if resource not in rule["resources"]]
    with running(namespace, daemonset(objects), mounts) as agent:
        assert resource in agent.wait_for("api_forbidden")["cause"]
