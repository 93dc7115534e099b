"""The present kube-proxy on its machine: its configuration, its way to the API server, and which Node this machine is."""

from __future__ import annotations

import base64
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.detect.host_files import HostFiles
from proxy.detect.processes import RunningProxy
from proxy.errors import SourceError
from proxy.kubeconfig import read_access
from proxy.migrate import access, identity, present, present_host
from proxy.migrate.configuration import usable
from proxy.migrate.identity import Machine
from proxy.model import Node, convert

CONFIG = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))


def process(*argv: str, root: Path, program: str = "kube-proxy") -> RunningProxy:
    return RunningProxy(4711, program, argv, str(root))


def starting(root: Path, *running: RunningProxy) -> dict[str, Any]:
    found = present_host.starting(HostFiles(root), running)
    assert found is not None
    return found.found.document


def test_a_process_and_the_file_that_it_names(root: Path) -> None:
    """In a container: the file is under its own root."""
    write(root, "pod/var/lib/kube-proxy/config.conf", CONFIG + "mode: ipvs\nhostnameOverride: ''\n")
    write(root, "etc/kubernetes/manifests/kube-proxy.yaml", "kind: nonsense")
    running = process(
        "kube-proxy",
        "--config=/var/lib/kube-proxy/config.conf",
        "--hostname-override=n1",
        "--proxy-mode=iptables",
        root=root / "pod",
    )
    found = present_host.starting(HostFiles(root), [running])
    assert found is not None
    assert found.found.document["mode"] == "ipvs"  # --config goes before the flag
    assert found.found.document["hostnameOverride"] == "n1"  # but not before this one
    assert found.found.source == "/var/lib/kube-proxy/config.conf"


def test_flags_alone(root: Path) -> None:
    running = process(
        "kube-proxy", "--proxy-mode", "ipvs", "--ipvs-scheduler=lc", "--nodeport-addresses=10.0.0.0/8,127.0.0.0/8",
        "--kubeconfig=/k", "--ipvs-tcp-timeout=15m", "--ipvs-exclude-cidrs=10.1.0.0/16", "--v=2", "--unknown-flag=1",
        "--iptables-masquerade-bit=15", "--conntrack-max-per-core=0", "--feature-gates=A=true,B=false", root=root,
    )  # fmt: skip
    assert starting(root, running) == {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "ipvs",
        "ipvs": {"scheduler": "lc", "tcpTimeout": "15m", "excludeCIDRs": ["10.1.0.0/16"]},
        "nodePortAddresses": ["10.0.0.0/8", "127.0.0.0/8"],
        "clientConnection": {"kubeconfig": "/k"},
        "logging": {"verbosity": 2},
        "iptables": {"masqueradeBit": 15},
        "conntrack": {"maxPerCore": 0},
        "featureGates": {"A": True, "B": False},
    }


def test_flags_that_cannot_be_are_named(root: Path) -> None:
    running = process("kube-proxy", "--ipvs-strict-arp=perhaps", "--cluster-cidr=pods", "--proxy-mode=ipvs", root=root)
    found = present_host.starting(HostFiles(root), [running])
    assert found is not None and found.found.document["mode"] == "ipvs"
    assert [one.what.rpartition(" ")[2] for one in found.found.unread] == ["--ipvs-strict-arp", "--cluster-cidr"]


def test_a_file_that_is_not_there_is_named(root: Path) -> None:
    found = present_host.starting(HostFiles(root), [process("kube-proxy", "--config=/gone", root=root)])
    assert found is not None
    [unread] = found.found.unread
    assert unread.what == "/gone" and unread.cause == "no such file or directory" and "--config" in unread.remedy


def test_a_static_pod(root: Path) -> None:
    write(
        root,
        "/etc/kubernetes/manifests/kube-proxy.yaml",
        """
        apiVersion: v1
        kind: Pod
        spec:
          containers:
          - name: kube-proxy
            image: registry.k8s.io/kube-proxy:v1.36.2
            command: [kube-proxy, --config=/etc/proxy/config.yaml]
            volumeMounts: [{name: c, mountPath: /etc/proxy}]
          volumes: [{name: c, hostPath: {path: /srv/proxy}}]
        """,
    )
    write(
        root,
        "/srv/proxy/config.yaml",
        CONFIG + "mode: nftables\nclientConnection: {kubeconfig: /etc/proxy/kubeconfig}\n",
    )
    found = present_host.starting(HostFiles(root), [])
    assert found is not None and found.found.document["mode"] == "nftables"
    assert found.found.kubeconfig == "/srv/proxy/kubeconfig"


def test_a_service(root: Path) -> None:
    write(
        root, "/etc/systemd/system/kube-proxy.service", "[Service]\nExecStart=/usr/bin/kube-proxy --proxy-mode=ipvs\n"
    )
    assert starting(root)["mode"] == "ipvs"


def test_k3s(root: Path) -> None:
    write(root, "/etc/rancher/k3s/config.yaml", "cluster-cidr: 10.50.0.0/16\nkube-proxy-arg: [proxy-mode=ipvs]\n")
    write(root, "/etc/rancher/k3s/config.yaml.d/a.yaml", "kube-proxy-arg+: [ipvs-scheduler=sh]\n")
    document = starting(root)
    assert document["mode"] == "ipvs" and document["ipvs"] == {"scheduler": "sh"}
    assert document["clusterCIDR"] == "10.50.0.0/16"
    assert document["clientConnection"]["kubeconfig"] == "/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig"
    write(root, "/etc/rancher/k3s/config.yaml", "disable-kube-proxy: true\n")
    assert present_host.starting(HostFiles(root), []) is None


def test_rke2_that_runs_without_a_file(root: Path) -> None:
    document = starting(root, process("/usr/local/bin/rke2 server", root=root, program="rke2"))
    assert document["mode"] == "iptables" and document["clusterCIDR"] == present_host.K3S_CLUSTER_CIDR


def test_microk8s(root: Path) -> None:
    write(root, "/var/snap/microk8s/current/args/kube-proxy", "--proxy-mode=ipvs\n--cluster-cidr=10.1.0.0/16\n")
    assert starting(root)["clusterCIDR"] == "10.1.0.0/16"


def test_what_may_be_left_over(root: Path) -> None:
    write(root, "/var/lib/kube-proxy/config.conf", CONFIG + "mode: ipvs\n")
    assert present_host.starting(HostFiles(root), []) is None
    found = present_host.left_over(HostFiles(root))
    assert found is not None and found.found.document["mode"] == "ipvs"
    assert "was not found" in found.found.unread[0].cause
    assert present_host.left_over(HostFiles(root / "var/lib")) is None


def test_a_mounted_config_map(root: Path) -> None:
    write(
        root, "/var/lib/kubelet/pods/x/volumes/kubernetes.io~configmap/kube-proxy/config.conf", CONFIG + "mode: ipvs\n"
    )
    found = present_host.left_over(HostFiles(root))
    assert found is not None and "a pod on this node mounts it" in found.found.unread[0].cause


def test_the_first_of_several_documents() -> None:
    text = f"apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n---\n{CONFIG}mode: ipvs\n---\n{CONFIG}mode: x\n"
    found = present.of_text(text.encode(), "f")
    assert found is not None and found.document["mode"] == "ipvs"
    (unread,) = found.unread
    assert unread.what == "f: document 3" and "one before it" in unread.cause


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CONFIG + "clusterCIDR: nonsense\n", "clusterCIDR"),
        (CONFIG.replace("v1alpha1", "v1alpha2"), "v1alpha2"),
        (CONFIG.replace("KubeProxy", "Kubelet"), "KubeletConfiguration"),
        (f"{CONFIG}---\n{CONFIG}", "2 YAML documents"),
        (CONFIG + "x: [t0k3n", "is not YAML"),
        (CONFIG + "mode: ipvs\n", ""),
    ],
)
def test_what_our_own_start_would_refuse(text: str, words: str) -> None:
    found = present.of_text(text.encode(), "f")
    assert found is not None and words in found.refused and bool(words) == bool(found.refused)
    assert "t0k3n" not in found.refused
    inside = present.of_text(yaml.safe_dump({"kind": "ConfigMap", "data": {"config.conf": text}}).encode(), "f")
    assert "Kubelet" in text or (inside is not None and inside.refused == found.refused)


def test_fields_that_nobody_knows() -> None:
    found = present.of_text((CONFIG + "clusterCidr: 10.0.0.0/8\nx: 1\niptables: {masqueradeBits: 3}\n").encode(), "f")
    assert found is not None and not found.unread
    assert found.unknown == [
        ("clusterCidr", "unknown field; did you mean clusterCIDR?"),
        ("x", "unknown field"),
        ("iptables.masqueradeBits", "unknown field; did you mean iptables.masqueradeBit?"),
    ]


def test_another_kind_is_refused_by_kube_proxy() -> None:
    found = present.of_text(b"kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v2\nmode: ipvs\n", "f")
    assert found is not None and found.document["mode"] == "ipvs"
    assert "it is not kubeproxy.config.k8s.io/v1alpha1" in found.unread[0].cause


def test_aliases_do_not_grow() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join(f'*{a}' for _ in range(10))}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    found = present.of_text((CONFIG + "mode: ipvs\n" + bomb).encode(), "f")
    assert found is not None and found.document["mode"] == "ipvs" and found.unread


def test_numbers_and_durations_stay_what_they_are() -> None:
    text = CONFIG + (
        "conntrack: {maxPerCore: 32768, tcpEstablishedTimeout: 24h0m0s}\noomScoreAdj: -999\n"
        "clientConnection: {qps: 5, burst: 10}\nmetricsBindAddress: '127.0.0.1:10249'\nbindAddress: 0.0.0.0\nipvs: {strictARP: true}\n"
    )
    found = present.of_text(text.encode(), "f")
    assert found is not None and not found.unread
    document, unread = usable(found.document, "f")
    assert not unread and document == found.document == yaml.safe_load(text)


def test_fields_that_contradict_each_other() -> None:
    document, [unread] = usable({"ipvs": {"syncPeriod": "1s", "minSyncPeriod": "2s"}, "mode": "ipvs"}, "f")
    assert "minSyncPeriod" in unread.cause and document["mode"] == "ipvs"
    assert "minSyncPeriod" not in document.get("ipvs", {})


# -- The way to the API server -----------------------------------------------------------------------------------------

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: x, user: u}}]
clusters: [{name: x, cluster: {server: "https://192.0.2.1:6443", certificate-authority: pki/ca.crt}}]
users: [{name: u, user: {tokenFile: /var/run/secrets/token}}]
"""


def connected(**more: Any) -> str:
    """The kubeconfig that would be used."""
    used: list[str] = []

    def make(kubeconfig: str) -> Any:
        used.append(kubeconfig)

    given = {"given": "", "environment": {}, "host": None, "files": HostFiles(Path("/nonexistent"))} | more
    access.connect(make=make, **given)
    return used[0]


def test_what_is_given_goes_first(root: Path) -> None:
    assert connected(given="/k", environment={"KUBERNETES_SERVICE_HOST": "x"}) == "/k"
    assert connected(environment={"KUBERNETES_SERVICE_HOST": "x", "KUBECONFIG": "/y"}) == ""
    assert connected(environment={"KUBECONFIG": "/y"}) == "/y"


def test_kube_proxy_s_own_in_its_container(root: Path) -> None:
    """Its token and its CA are under its root, where they would not be found from here."""
    write(root, "/lib/kubeconfig", KUBECONFIG)
    write(root, "/lib/pki/ca.crt", "PEM")
    write(root, "/run/secrets/token", "s3cr3t\n")
    (root / "var").mkdir()
    (root / "var/run").symlink_to("/run")
    running = process("kube-proxy", "--kubeconfig=/lib/kubeconfig", root=root)
    host = present_host.starting(HostFiles(Path("/nonexistent")), [running])
    path = connected(host=host, environment={"KUBECONFIG": "/y"})
    made = read_access(path, "")
    assert (made.token, made.servers, made.ca.data) == ("s3cr3t", ("https://192.0.2.1:6443",), b"PEM")
    assert path.startswith("/proc/self/fd/")  # on no disk
    assert base64.b64encode(b"PEM").decode() in Path(path).read_text()


def test_kube_proxy_s_own_where_installers_put_it(root: Path) -> None:
    write(
        root,
        access.USUAL[1],
        KUBECONFIG.replace("tokenFile: /var/run/secrets/token", "token: t").replace(
            ", certificate-authority: pki/ca.crt", ""
        ),
    )
    assert read_access(connected(files=HostFiles(root)), "").token == "t"


def test_kube_proxy_s_own_that_is_broken(root: Path) -> None:
    write(root, access.USUAL[0], KUBECONFIG)
    with pytest.raises(SourceError, match="a file that it names: No such file"):
        connected(files=HostFiles(root))
    write(root, access.USUAL[0], "users: 5")
    with pytest.raises(SourceError, match="no kubeconfig"):
        connected(files=HostFiles(root))


# -- Which node --------------------------------------------------------------------------------------------------------


def node(name: str = "n1", *addresses: str, kind: str = "InternalIP") -> Node:
    status = {"addresses": [{"type": kind, "address": address} for address in addresses]}
    found = convert("Node", {"metadata": {"name": name}, "status": status})
    assert isinstance(found, Node)
    return found


HERE = Machine(("host", "host.example"), frozenset({bytes([192, 0, 2, 1])}), "boot-1")


@pytest.mark.parametrize(
    ("found", "boot", "words"),
    [
        (node("n1", "192.0.2.1"), "", ""),
        (node("n1", "192.0.2.1", kind="ExternalIP"), "boot-1", ""),
        (node("host", "192.0.2.1"), "boot-2", ""),
        (node("n1", "192.0.2.1"), "boot-2", "another boot ID"),
        (node("host", "192.0.2.7"), "", "none of the addresses"),
        (node("n1", "192.0.2.1", kind="Hostname"), "", "this machine is called host"),
        (node("host"), "", ""),
        (node("n1", "no address"), "", "this machine is called host"),
        (None, "", "this machine is called host"),
    ],
)
def test_whether_this_machine_is_the_node(found: Node | None, boot: str, words: str) -> None:
    why = identity.why_not(found, found.metadata.name if found else "n1", boot, HERE)
    assert words in why and bool(words) == bool(why)


@pytest.mark.parametrize(
    ("nodes", "chosen"),
    [
        ([node("a"), node("host.example")], "host.example"),
        ([node("a"), node("b", "192.0.2.1"), node("c")], "b"),
        ([node("a")], "a"),
        ([node("a"), node("b")], ""),
        ([], ""),
    ],
)
def test_which_node_it_is(nodes: list[Node], chosen: str) -> None:
    assert identity.choose(nodes, HERE) == chosen
