"""The configurations on a machine: its well-known places, and which of them decide. On file systems made for the test."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from proxy.detect import host_files
from proxy.detect.evidence import ConfiguredMode, Evidence, FeatureGate, IpvsOption, Unreadable, Version
from proxy.detect.host import gather_host
from proxy.detect.host_files import HostFiles, NotAFile
from proxy.detect.judge import judge
from proxy.detect.processes import RunningProxy
from proxy.detect.running import read_processes

DATA: Final = Path(__file__).parent / "data" / "detect"
HEAD: Final = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
UNITS: Final = "etc/systemd/system"


def fill(root: Path, files: Mapping[str, str]) -> Path:
    """Makes these files; "-> target" makes a symbolic link."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith("-> "):
            path.symlink_to(content.removeprefix("-> "))
        else:
            path.write_text(content)
    return root


def corpus(name: str) -> str:
    return (DATA / name).read_text()


def process(*argv: str, root: Path, pid: int = 7, program: str = "kube-proxy") -> RunningProxy:
    return RunningProxy(pid, program, argv, str(root))


def modes(evidence: list[Evidence]) -> list[tuple[str, str, str]]:
    """Those that decide: mode, kind of place, how sure."""
    return [(e.mode, e.place.kind, e.sure) for e in evidence if isinstance(e, ConfiguredMode) and not e.overridden]


def set_aside(evidence: list[Evidence]) -> list[tuple[str, str]]:
    return [(e.mode, e.place.name) for e in evidence if isinstance(e, ConfiguredMode) and e.overridden]


def unreadable(evidence: list[Evidence]) -> list[tuple[str, str]]:
    return [(e.place.name, e.cause) for e in evidence if isinstance(e, Unreadable)]


def checks(evidence: list[Evidence], version: str = "1.37") -> set[str]:
    return {finding.check for finding in judge(evidence, version).findings}


# -- What starts a kube-proxy ------------------------------------------------------------------------------------------


def test_nothing(tmp_path: Path) -> None:
    assert gather_host(tmp_path, "n1") == []
    assert [e for e in gather_host(tmp_path / "missing") if not isinstance(e, Unreadable)] == []


def test_the_node_of_all_evidence(tmp_path: Path) -> None:
    fill(tmp_path, {"etc/kubernetes/manifests/kube-proxy.manifest": corpus("flags/kops-static-pod.manifest")})
    found = gather_host(tmp_path, "n1")
    assert modes(found) == [("ipvs", "file", "certain")] and {e.place.node for e in found} == {"n1"}


def test_a_process_in_a_container(tmp_path: Path) -> None:
    """kubeadm: the ConfigMap is mounted in the container; what is on the machine is of other times."""
    container = fill(
        tmp_path / "container",
        {
            "var/lib/kube-proxy/..2026/config.conf": HEAD + "mode: nftables\n",
            "var/lib/kube-proxy/..data": "-> ..2026",
            "var/lib/kube-proxy/config.conf": "-> ..data/config.conf",
        },
    )
    machine = fill(
        tmp_path / "machine",
        {
            "var/lib/kube-proxy/old.yaml": HEAD
            + "mode: ipvs\nfeatureGates: {KubeProxyIPVS: true}\nipvs: {strictARP: true}\n",
            "etc/kubernetes/kubeadm-config.yaml": corpus("kubeadm/config-ipvs.yaml"),
        },
    )
    running = [process("/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf", root=container)]
    found = gather_host(machine, "n1", running)
    assert modes(found) == [("nftables", "file", "certain")]
    assert set_aside(found) == [
        ("ipvs", "/var/lib/kube-proxy/old.yaml"), ("ipvs", "/etc/kubernetes/kubeadm-config.yaml")
    ]  # fmt: skip
    assert not any(isinstance(e, FeatureGate | IpvsOption) for e in found)
    assert checks(found) == set()


def test_what_may_be_left_over_counts_where_nothing_else_is_found_and_never_for_sure(tmp_path: Path) -> None:
    fill(tmp_path, {"etc/kubernetes/kubeadm-config.yaml": corpus("kubeadm/config-ipvs.yaml")})
    found = gather_host(tmp_path)
    assert modes(found) == [("ipvs", "file", "possible")]
    assert [e.note for e in found if isinstance(e, ConfiguredMode)] == [
        "what would start a kube-proxy with this file was not found"
    ]


def test_one_configuration_seen_in_many_ways_is_one(tmp_path: Path) -> None:
    """A service, its process and their file."""
    fill(
        tmp_path,
        {
            "var/lib/kube-proxy/kube-proxy-config.yaml": HEAD + "mode: ipvs\n",
            f"{UNITS}/kube-proxy.service": corpus("flags/config-file.service"),
        },
    )
    argv = ("/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/kube-proxy-config.yaml")
    found = gather_host(tmp_path, "n1", [process(*argv, root=tmp_path)])
    assert modes(found) == [("ipvs", "file", "certain")] and not set_aside(found)
    assert checks(found) == {"ipvs-mode"}


def test_a_service_that_was_changed_and_not_restarted(tmp_path: Path) -> None:
    fill(tmp_path, {f"{UNITS}/kube-proxy.service": "[Service]\nExecStart=kube-proxy --proxy-mode=nftables\n"})
    found = gather_host(tmp_path, "n1", [process("kube-proxy", "--proxy-mode=ipvs", root=tmp_path)])
    assert modes(found) == [("ipvs", "process", "certain"), ("nftables", "unit", "certain")]
    assert checks(found) == {"ipvs-mode", "modes-differ"}


def test_static_pods(tmp_path: Path) -> None:
    """kubelet reads all files of its directory but those that begin with a dot."""
    fill(
        tmp_path,
        {
            "var/lib/kubelet/config.yaml": "kind: KubeletConfiguration\nstaticPodPath: /srv/pods\n",
            "srv/pods/proxy": corpus("flags/config-on-host.yaml"),
            "srv/pods/.kube-proxy.yaml.swp": corpus("flags/shell-in-pod.yaml"),
            "srv/pods/etcd.yaml": "kind: Pod\n\tx",
            "etc/kubernetes/kube-proxy.yaml": HEAD + "mode: nftables\n",
        },
    )
    found = gather_host(tmp_path)
    assert modes(found) == [("nftables", "file", "certain")] and set_aside(found) == [("ipvs", "/srv/pods/proxy")]
    assert [e.version for e in found if isinstance(e, Version)] == ["v1.36.2"]
    assert not unreadable(found)


def test_rke2(tmp_path: Path) -> None:
    """Its file, the static pod that it makes of it, and the process agree."""
    fill(
        tmp_path,
        {
            "etc/rancher/rke2/config.yaml": "cni: canal\n",
            "var/lib/rancher/rke2/agent/pod-manifests/kube-proxy.yaml": corpus("k3s/rke2-static-pod.yaml"),
            "usr/local/lib/systemd/system/rke2-server.service": "[Service]\nExecStart=/usr/local/bin/rke2 server\n",
        },
    )
    running = [
        process("/usr/local/bin/rke2 server", root=tmp_path, program="rke2"),
        process("kube-proxy", "--proxy-mode=iptables", root=tmp_path, pid=8),
    ]
    found = gather_host(tmp_path, "n1", running)
    assert {mode for mode, _, _ in modes(found)} == {"iptables"} and checks(found) == set()


K3S: Final = {
    f"{UNITS}/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s \\\n    server \\\n",
    "etc/rancher/k3s/config.yaml": "kube-proxy-arg:\n- proxy-mode=ipvs\n- v=2\n",
}


@pytest.mark.parametrize(
    ("files", "mode", "place", "aside"),
    [
        ({}, "ipvs", "/etc/rancher/k3s/config.yaml", []),
        (
            {"etc/rancher/k3s/config.yaml.d/10.yaml": "kube-proxy-arg: [proxy-mode=nftables]\n"},
            "nftables",
            "/etc/rancher/k3s/config.yaml.d/10.yaml",
            [("ipvs", "/etc/rancher/k3s/config.yaml")],
        ),
        (
            {"etc/rancher/k3s/config.yaml.d/10.yaml": "kube-proxy-arg: [v=4]\n"},
            "iptables",
            "/etc/systemd/system/k3s.service",
            [("ipvs", "/etc/rancher/k3s/config.yaml")],
        ),
        (
            {
                "etc/rancher/k3s/config.yaml.d/10.yaml": "kube-proxy-arg+: [proxy-mode=nftables]\n",
                "etc/rancher/k3s/config.yaml.d/20.yml": "kube-proxy-arg+: proxy-mode=iptables\n",
                "etc/rancher/k3s/config.yaml.d/30.txt": "kube-proxy-arg: proxy-mode=nftables\n",
            },
            "iptables",
            "/etc/rancher/k3s/config.yaml.d/20.yml",
            [("ipvs", "/etc/rancher/k3s/config.yaml"), ("nftables", "/etc/rancher/k3s/config.yaml.d/10.yaml")],
        ),
        (
            {f"{UNITS}/k3s.service.d/x.conf": "[Service]\nExecStart=\nExecStart=k3s agent --kube-proxy-arg=proxy-mode=nftables\n"},
            "nftables",
            "/etc/systemd/system/k3s.service.d/x.conf",
            [("ipvs", "/etc/rancher/k3s/config.yaml")],
        ),
        (
            {
                f"{UNITS}/k3s.service": "[Service]\nExecStart=k3s server -c /srv/k3s.yaml\n",
                "srv/k3s.yaml": "kube-proxy-arg: [proxy-mode=nftables]\n",
            },
            "nftables",
            "/srv/k3s.yaml",
            [],
        ),
    ],
)  # fmt: skip
def test_k3s(tmp_path: Path, files: dict[str, str], mode: str, place: str, aside: list[tuple[str, str]]) -> None:
    fill(tmp_path, K3S | files)
    found = gather_host(tmp_path, running=[process("/usr/local/bin/k3s server", root=tmp_path, program="k3s")])
    assert [(e.mode, e.place.name) for e in found if isinstance(e, ConfiguredMode) and not e.overridden] == [
        (mode, place)
    ]
    assert set_aside(found) == aside and not unreadable(found)


def test_k3s_without_a_service(tmp_path: Path) -> None:
    """OpenRC, or a container: its process hides its arguments, and is there."""
    running = [process("/usr/local/bin/k3s agent", root=tmp_path, program="k3s")]
    found = gather_host(tmp_path, "n1", running)
    assert modes(found) == [("iptables", "process", "likely")]  # no file that is not there
    assert found[0].place.name == running[0].place.name and found[0].place.node == "n1"
    assert modes(gather_host(tmp_path)) == []
    fill(tmp_path, {"etc/rancher/k3s/config.yaml.d/a.yaml": "disable-kube-proxy: true\n"})
    found = gather_host(tmp_path, running=running)
    assert modes(found) == [] and [e.harmless for e in found if isinstance(e, Unreadable)] == [True]


def test_k3s_that_shows_its_arguments(tmp_path: Path) -> None:
    fill(tmp_path, K3S)
    argv = ("/bin/k3s", "server", "--token", "hunter2", "--kube-proxy-arg", "proxy-mode=nftables")
    found = read_processes([process(*argv, root=tmp_path, program="k3s")], "n1")
    assert modes(found) == [("nftables", "process", "certain")] and "hunter2" not in str(found)


def test_flags_of_snaps(tmp_path: Path) -> None:
    """microk8s: the process, which has it all in one, names the file."""
    path = "var/snap/microk8s/7000/args/kube-proxy"
    fill(tmp_path, {path: corpus("flags/microk8s-args"), "var/snap/microk8s/current": "-> 7000"})
    found = gather_host(tmp_path)
    assert modes(found) == [("ipvs", "file", "certain")]
    argv = ("/snap/microk8s/7000/kubelite", f"--proxy-args-file=/{path}", "--start-control-plane=true")
    found = gather_host(tmp_path, running=[process(*argv, root=tmp_path, program="kubelite")])
    assert [e.place.name for e in found if isinstance(e, ConfiguredMode)] == [f"/{path}"]
    assert [e.value for e in found if isinstance(e, FeatureGate)] == [True]


def test_a_configmap_that_kubelet_mounts(tmp_path: Path) -> None:
    """Where the processes cannot be seen."""
    volume = "var/lib/kubelet/pods/0b1c/volumes/kubernetes.io~configmap/kube-proxy"
    fill(
        tmp_path,
        {
            f"{volume}/..2026/config.conf": HEAD + "mode: ipvs\n",
            f"{volume}/..data": "-> ..2026",
            f"{volume}/config.conf": "-> ..data/config.conf",
            "var/lib/kube-proxy/config.conf": HEAD + "mode: iptables\n",
        },
    )
    found = gather_host(tmp_path)
    assert modes(found) == [("ipvs", "file", "possible")]
    assert set_aside(found) == [("iptables", "/var/lib/kube-proxy/config.conf")]
    found = gather_host(tmp_path, running=[process("kube-proxy", "--proxy-mode=nftables", root=tmp_path)])
    assert modes(found) == [("nftables", "process", "certain")]


def test_the_file_of_a_process_is_gone(tmp_path: Path) -> None:
    found = read_processes([process("kube-proxy", "--config=/c.yaml", "--proxy-mode=ipvs", root=tmp_path)], "n1")
    assert modes(found) == [] and set_aside(found) == [("ipvs", "7 (kube-proxy)")]
    assert unreadable(found) == [("/c.yaml", "--config of process 7 (kube-proxy) names it: no such file or directory")]
    assert checks(found) == {"unreadable"}


# -- Services ----------------------------------------------------------------------------------------------------------


SERVICE: Final = "[Service]\nExecStart=/usr/bin/kube-proxy --proxy-mode={}\n[Install]\nWantedBy=multi-user.target\n"
WANTED: Final = {f"{UNITS}/multi-user.target.wants/kube-proxy.service": "-> ../kube-proxy.service"}


def test_a_service_that_is_not_enabled_is_not_started(tmp_path: Path) -> None:
    fill(tmp_path, {f"{UNITS}/kube-proxy.service": SERVICE.format("ipvs")})
    found = gather_host(tmp_path)
    assert modes(found) == [] and set_aside(found) == [("ipvs", "/etc/systemd/system/kube-proxy.service")]
    fill(tmp_path, WANTED)
    assert modes(gather_host(tmp_path)) == [("ipvs", "unit", "certain")]


def test_systemds_order_of_directories(tmp_path: Path) -> None:
    fill(tmp_path, WANTED | {"usr/lib/systemd/system/kube-proxy.service": SERVICE.format("ipvs"), "lib": "-> usr/lib"})
    assert modes(gather_host(tmp_path)) == [("ipvs", "unit", "certain")]
    fill(tmp_path, {"run/systemd/system/kube-proxy.service": SERVICE.format("iptables")})
    assert modes(gather_host(tmp_path)) == [("iptables", "unit", "certain")]
    fill(tmp_path, {f"{UNITS}/kube-proxy.service": "-> /dev/null", "dev/null": ""})
    fill(tmp_path, {f"{UNITS}/kube-proxy.service.d/a.conf": "[Service]\nExecStart=kube-proxy --proxy-mode=ipvs\n"})
    (tmp_path / "dev/null").unlink()
    os.mkfifo(tmp_path / "dev/null")  # a device, as far as we can make one
    assert modes(gather_host(tmp_path)) == []


def test_drop_ins(tmp_path: Path) -> None:
    """By name over all directories; of two with one name that of /etc counts, and a unit's own before those for many."""
    fill(
        tmp_path,
        WANTED
        | {
            "usr/lib/systemd/system/kube-proxy.service": SERVICE.format("$MODE"),
            "usr/lib/systemd/system/kube-proxy.service.d/10-mode.conf": "[Service]\nEnvironment=MODE=ipvs\n",
            "usr/lib/systemd/system/kube-proxy.service.d/20-more.conf": "[Service]\nEnvironment=MODE=nftables\n",
            f"{UNITS}/kube-proxy.service.d/20-more.conf": "[Service]\n# nothing\n",
            f"{UNITS}/service.d/05-all.conf": "[Service]\nEnvironment=MODE=iptables\n",
            f"{UNITS}/kube-.service.d/10-mode.conf": "[Service]\nEnvironment=MODE=iptables\n",
            f"{UNITS}/kube-proxy.service.d/99.txt": "[Service]\nEnvironment=MODE=iptables\n",
        },
    )
    assert modes(gather_host(tmp_path)) == [("$MODE", "unit", "certain")]  # only a word of its own is a $VARIABLE
    fill(
        tmp_path,
        {
            "usr/lib/systemd/system/kube-proxy.service.d/30.conf": "[Service]\nExecStart=\nExecStart=kube-proxy --proxy-mode=${MODE}\n"
        },
    )
    [found] = [e for e in gather_host(tmp_path) if isinstance(e, ConfiguredMode)]
    assert (found.mode, found.place.name) == ("ipvs", "/usr/lib/systemd/system/kube-proxy.service.d/10-mode.conf")


def test_environment_files(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {
            f"{UNITS}/kube-proxy.service": corpus("flags/environment-file.service"),
            "etc/kubernetes/proxy": "# here\nKUBE_PROXY_ARGS='--proxy-mode=ipvs --ipvs-scheduler=lc'\n",
        },
    )
    found = gather_host(tmp_path)
    assert [(e.mode, e.place.name, e.place.line) for e in found if isinstance(e, ConfiguredMode)] == [
        ("ipvs", "/etc/kubernetes/proxy", 2)
    ]
    (tmp_path / "etc/kubernetes/proxy").unlink()
    assert modes(gather_host(tmp_path)) == [
        ("", "unit", "certain")
    ]  # it is optional there, and nothing else sets a mode
    fill(tmp_path, {f"{UNITS}/kube-proxy.service.d/a.conf": "[Service]\nEnvironmentFile=/etc/kubernetes/proxy\n"})
    assert [name for name, cause in unreadable(gather_host(tmp_path)) if "does not start" in cause] == [
        "/etc/kubernetes/proxy"
    ]


def test_an_environment_file_with_the_units_name(tmp_path: Path) -> None:
    unit = "[Service]\nEnvironmentFile=/etc/default/%N\nExecStart=k3s server $ARGS\n"
    fill(tmp_path, {f"{UNITS}/k3s.service": unit, "etc/default/k3s": "ARGS=--kube-proxy-arg=proxy-mode=ipvs\n"})
    assert modes(gather_host(tmp_path)) == [("ipvs", "file", "certain")]


def test_a_start_script(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {
            f"{UNITS}/proxy.service": "[Service]\nExecStart=/opt/kube-proxy.sh\n",
            "opt/kube-proxy.sh": corpus("flags/start.sh"),
        },
    )
    [found] = [e for e in gather_host(tmp_path) if isinstance(e, ConfiguredMode)]
    assert (found.mode, found.place.name, found.place.line) == ("ipvs", "/opt/kube-proxy.sh", 4)


def test_a_service_that_cannot_be_understood(tmp_path: Path) -> None:
    fill(tmp_path, {f"{UNITS}/kube-proxy.service": "[Service]\nExecStart=/opt/proxy/bin/launch --all\n"})
    assert unreadable(gather_host(tmp_path)) == [
        ("/etc/systemd/system/kube-proxy.service", "what it starts cannot be understood")
    ]


# -- Files that are not as they should be ------------------------------------------------------------------------------


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(
        tmp_path,
        K3S
        | {
            "etc/kubernetes/manifests/kube-proxy.yaml": "x",
            "etc/kubernetes/manifests/kube-apiserver.yaml": "x",
            "var/lib/kube-proxy/config.conf": "x",
        },
    )

    there = HostFiles.read

    def read(self: HostFiles, path: str) -> bytes:
        there(self, path)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(HostFiles, "read", read)
    found = gather_host(tmp_path, "n1", [process("/usr/bin/k3s server", root=tmp_path, program="k3s")])
    assert modes(found) == []
    assert sorted(unreadable(found)) == [
        (path, "permission denied")
        for path in (
            "/etc/kubernetes/manifests/kube-proxy.yaml",
            "/etc/rancher/k3s/config.yaml",
            "/etc/systemd/system/k3s.service",
            "/var/lib/kube-proxy/config.conf",
        )
    ]
    assert {e.remedy for e in found if isinstance(e, Unreadable)} == {"run this on the node, as root"}


def test_directories_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(self: HostFiles, directory: str) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(HostFiles, "names", names)
    found = gather_host(tmp_path)
    assert found and all(cause == "permission denied" for _, cause in unreadable(found))
    assert len(found) == len({name for name, _ in unreadable(found)})


def test_links_lead_nowhere_outside(tmp_path: Path) -> None:
    fill(tmp_path, {"secret/kube-proxy.yaml": HEAD + "mode: ipvs\n"})
    root = fill(
        tmp_path / "root",
        {
            "etc/kubernetes/manifests/kube-proxy-1.yaml": "-> ../../../../secret/kube-proxy.yaml",
            "etc/kubernetes/manifests/kube-proxy-2.yaml": f"-> {tmp_path}/secret/kube-proxy.yaml",
            "etc/kubernetes/kube-proxy-3.yaml": "-> kube-proxy-3.yaml",
            "etc/kubernetes/kube-proxy-4.yaml": "-> /srv/kube-proxy.yaml",
            "srv/kube-proxy.yaml": HEAD + "mode: nftables\n",
        },
    )
    found = gather_host(root)
    assert modes(found) == [("nftables", "file", "possible")]
    assert unreadable(found) == [("/etc/kubernetes/kube-proxy-3.yaml", "too many symbolic links")]


def test_odd_files(tmp_path: Path) -> None:
    fill(tmp_path, {"var/lib/kube-proxy/.keep": "", "etc/kubernetes/kube-proxy.conf": "x" * (host_files.LARGEST + 1)})
    os.mkfifo(tmp_path / "var/lib/kube-proxy/config.conf")
    (tmp_path / "var/lib/kube-proxy/directory").mkdir()
    found = gather_host(tmp_path)
    assert unreadable(found) == [("/etc/kubernetes/kube-proxy.conf", "it is larger than 4 mib")]


def test_reading_inside_a_root(tmp_path: Path) -> None:
    fill(tmp_path, {"a/b": "1", "a/c": "-> /a/../a/b", "a/d": "-> .", "up": "-> ../../../../../a/b"})
    files = HostFiles(tmp_path)
    assert [files.read(path) for path in ("/a/b", "a/b", "/a/c", "/a/d/d/b", "/up", "/../a/./b")] == [b"1"] * 6
    assert files.names("/a") == ["b", "c", "d"] == files.names("/a/d/..//a") and files.names("/") == ["a", "up"]
    assert files.names("/none") == [] == files.names("/a/b") and files.names("/a/d/..") == ["a", "up"]
    for path, error in (
        ("/none", FileNotFoundError),
        ("/a/b/c", NotADirectoryError),
        ("/a", NotAFile),
        ("/", NotAFile),
    ):
        with pytest.raises(error):
            files.read(path)
    before = set(os.listdir("/proc/self/fd"))
    for path in ("/a/b", "/a/c", "/up", "/none", "/a"):
        try:
            files.read(path)
        except OSError:
            pass
    assert set(os.listdir("/proc/self/fd")) == before


def test_many_files(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {f"etc/kubernetes/manifests/kube-proxy-{n:04}.yaml": corpus("flags/hyperkube.yaml") for n in range(300)},
    )
    assert len(modes(gather_host(tmp_path))) == 200
