"""Which processes, other proxies and kernels the detector recognises, from files made for the test."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.detect import interfaces, other_proxies
from proxy.detect.evidence import OtherProxy, Place, Unreadable
from proxy.detect.kernel_support import KernelFiles, kernel
from proxy.detect.live import gather
from proxy.detect.other_proxies import SIGNS
from proxy.detect.processes import RunningProxy, blindness, identify, scan

HERE, ELSEWHERE = "net:[4026531840]", "net:[4026532999]"


class Proc:
    """A /proc. The thread that looks is in HERE."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._link("thread-self/ns/net", HERE)
        self._link("self/ns/pid", "pid:[4026531836]")

    def add(self, pid: int, *argv: str, namespace: str = HERE) -> None:
        directory = self.path / str(pid)
        directory.mkdir()
        (directory / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
        if namespace:
            self._link(f"{pid}/ns/net", namespace)

    def in_container(self) -> None:
        (self.path / "self/ns/pid").unlink()
        self._link("self/ns/pid", "pid:[4026532777]")

    def _link(self, name: str, target: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).symlink_to(target)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path / "proc")


# ------------------------------------------------------------------ processes


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        (["/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf"], "kube-proxy"),
        (["kube-proxy"], "kube-proxy"),
        (["/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml"], "kubelet"),
        (["/usr/local/bin/k3s server"], "k3s"),
        (["/usr/local/bin/k3s", "agent", "--kube-proxy-arg=proxy-mode=ipvs"], "k3s"),
        (["/usr/local/bin/k3s", "kubectl", "get", "pods"], ""),
        (["/usr/local/bin/k3s"], ""),
        (["/usr/local/bin/rke2 server"], "rke2"),
        (["/hyperkube", "proxy", "--proxy-mode=ipvs"], "kube-proxy"),
        (["/snap/microk8s/7000/kubelite", "--proxy-args-file=/var/snap/args/kube-proxy"], "kubelite"),
        (["calico-node", "-felix"], "calico-node"),
        (["calico-node", "-confd"], ""),
        (["cilium-agent", "--config-dir=/tmp/cilium/config-map"], "cilium-agent"),
        (["/usr/local/bin/kube-router", "--run-router=true"], "kube-router"),
        (["antrea-agent", "--config", "/etc/antrea/antrea-agent.conf"], "antrea-agent"),
        (["/usr/bin/ovnkube", "--init-node", "n1"], "ovnkube"),
        (["kube-proxy-nft", "run"], ""),
        (["/usr/bin/python3", "/usr/local/bin/kube-proxy-nft", "run"], ""),
        (["grep", "kube-proxy"], ""),
        (["sh", "-c", "kube-proxy"], ""),
        (["journalctl", "-u", "k3s", "server"], ""),
        ([""], ""),
        ([], ""),
    ],
)
def test_what_a_command_line_is_of(argv: list[str], program: str) -> None:
    assert identify(argv) == program


def test_processes_of_this_network_namespace(proc: Proc) -> None:
    proc.add(900, "kube-proxy", "--proxy-mode", "ipvs", "", "--v=2")
    proc.add(20, "/usr/bin/kubelet")
    proc.add(30, "kube-proxy", namespace=ELSEWHERE)  # of a cluster in containers, such as kind
    proc.add(40, "bash")
    proc.add(41)  # a kernel thread
    proc.add(50, "/usr/local/bin/k3s server", namespace="")  # whose namespace is not for us to see
    (proc.path / "60").mkdir()  # one that has just ended
    found = scan(proc.path)
    assert [(p.pid, p.program) for p in found] == [(20, "kubelet"), (50, "k3s"), (900, "kube-proxy")]
    assert found[-1] == RunningProxy(
        900, "kube-proxy", ("kube-proxy", "--proxy-mode", "ipvs", "", "--v=2"), str(proc.path / "900/root")
    )
    assert found[-1].place == Place("process", "900 (kube-proxy)")


def test_a_command_line_may_be_anything(proc: Proc) -> None:
    proc.add(1, "kube-proxy", "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "x" * 300_000)
    (found,) = scan(proc.path)
    assert sum(map(len, found.argv)) < 1 << 18


def test_no_proc_at_all(tmp_path: Path) -> None:
    assert scan(tmp_path / "nothing") == []


def test_a_real_process() -> None:
    """Under another name, as a real kube-proxy would be: by its first word."""
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    argv = ["kube-proxy", "-c", code, "--proxy-mode=ipvs"]
    with subprocess.Popen(
        argv, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "up\n"
        found = {p.pid: p for p in scan()}
        process.communicate("")
    assert found[process.pid].argv == tuple(argv)
    assert os.getpid() not in found


def test_a_container_sees_no_process_of_the_node(proc: Proc) -> None:
    assert blindness([], proc.path) == []
    proc.in_container()
    (found,) = blindness([], proc.path)
    assert isinstance(found, Unreadable) and found.harmless and "hostPID" in found.remedy
    assert blindness([RunningProxy(1, "kubelet", ("kubelet",), "/")], proc.path) == []


# ------------------------------------------------------------------ other proxies


def sure(monkeypatch: pytest.MonkeyPatch, running: list[RunningProxy], *there: str) -> list[tuple[str, str, str]]:
    monkeypatch.setattr(interfaces, "indexes", lambda _: dict.fromkeys(there, 1))
    found = other_proxies.gather(running)
    return [(e.program, e.sure, e.place.kind) for e in found if isinstance(e, OtherProxy)]


def process(program: str, *arguments: str, root: str = "/nonexistent") -> RunningProxy:
    return RunningProxy(7, program, (program, *arguments), root)


@pytest.mark.parametrize(
    ("running", "there", "expected"),
    [
        ([], [], []),
        ([], ["cilium_host"], [("cilium", "possible", "interface")]),
        ([process("cilium-agent")], ["cilium_host"], [("cilium", "possible", "process")]),
        ([process("cilium-agent", "--kube-proxy-replacement=true")], [], [("cilium", "certain", "process")]),
        ([process("cilium-agent", "--kube-proxy-replacement=strict")], [], [("cilium", "certain", "process")]),
        ([process("cilium-agent", "--kube-proxy-replacement=partial")], [], [("cilium", "possible", "process")]),
        ([process("cilium-agent", "--kube-proxy-replacement=false")], ["cilium_host"], []),
        ([process("calico-node", "-felix")], [], []),
        ([process("calico-node", "-felix")], ["bpfin.cali"], [("calico-ebpf", "certain", "process")]),
        ([], ["bpfin.cali"], [("calico-ebpf", "likely", "interface")]),
        ([process("kube-router")], [], [("kube-router", "certain", "process")]),
        ([process("kube-router", "--run-service-proxy=false")], [], []),
        ([], ["kube-dummy-if"], [("kube-router", "likely", "interface")]),
        ([process("antrea-agent")], ["antrea-gw0"], [("antrea", "possible", "process")]),
        ([process("ovnkube")], ["ovn-k8s-mp0"], [("ovn-kubernetes", "certain", "process")]),
        ([process("ovnkube")], [], [("ovn-kubernetes", "possible", "process")]),
        ([process("kube-proxy"), process("kubelet")], ["eth0"], []),
    ],
)
def test_how_sure_it_is_that_another_proxy_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
    running: list[RunningProxy],
    there: list[str],
    expected: list[tuple[str, str, str]],
) -> None:
    assert sure(monkeypatch, running, *there) == expected


@pytest.mark.parametrize(("word", "answer"), [("true\n", True), ("false", False), ("probe", None), ("", None)])
def test_ciliums_configuration_is_read_from_its_container(tmp_path: Path, word: str, answer: bool | None) -> None:
    directory = tmp_path / other_proxies.CILIUM_CONFIG
    directory.mkdir(parents=True)
    (directory / "kube-proxy-replacement").write_text(word)
    assert other_proxies.cilium_replaces(process("cilium-agent", root=str(tmp_path))) is answer


def test_a_pipe_in_a_container_is_not_waited_for(tmp_path: Path) -> None:
    directory = tmp_path / other_proxies.CILIUM_CONFIG
    directory.mkdir(parents=True)
    os.mkfifo(directory / "kube-proxy-replacement")
    assert other_proxies.cilium_replaces(process("cilium-agent", root=str(tmp_path))) is None


def test_interfaces_that_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> dict[str, int]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(interfaces, "indexes", refuse)
    unreadable, found = other_proxies.gather([process("kube-router")])
    assert isinstance(unreadable, Unreadable) and "AF_NETLINK" in unreadable.remedy
    assert isinstance(found, OtherProxy)
    assert isinstance(interfaces.gather()[0], Unreadable)


def test_names_fit_the_kernel() -> None:
    assert all(len(signs.interface) < 16 for signs in SIGNS)


# ------------------------------------------------------------------ the kernel

RELEASE = "6.1.0-57-amd64"
CONFIG = "CONFIG_NET=y\n"


def files(root: Path, **contents: str) -> KernelFiles:
    """contents: `config`, `modules` (of /proc), `builtin`, `dep`, `loaded` (a module of /sys/module)."""
    paths = {
        "config": f"boot/config-{RELEASE}",
        "modules": "proc/modules",
        "builtin": f"lib/modules/{RELEASE}/modules.builtin",
        "dep": f"lib/modules/{RELEASE}/modules.dep",
    }
    for name, text in contents.items():
        if name == "loaded":
            (root / "sys/module" / text).mkdir(parents=True)
        else:
            path = root / paths[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return KernelFiles(root, RELEASE)


DEP = (
    "kernel/net/netfilter/ipvs/ip_vs.ko: kernel/net/netfilter/nf_conntrack.ko\nkernel/net/netfilter/ipvs/ip_vs_rr.ko:\n"
)
COMPRESSED = DEP.replace(".ko", ".ko.xz")
BUILTIN = "kernel/net/netfilter/ipvs/ip_vs.ko\n"
OTHER = "kernel/fs/ext4/ext4.ko:\n"


@pytest.mark.parametrize(
    ("contents", "presence"),
    [
        ({}, "unknown"),
        ({"loaded": "ip_vs"}, "there"),
        ({"modules": "ip_vs_rr 16384 1 - Live 0x0\nip_vs 204800 3 ip_vs_rr, Live 0x0\n"}, "there"),
        ({"modules": "ip_vs_rr 16384 1 - Live 0x0\n"}, "unknown"),
        ({"config": CONFIG + "CONFIG_IP_VS=y\n"}, "there"),
        ({"config": CONFIG + "CONFIG_IP_VS=m\nCONFIG_IP_VS_RR=m\n"}, "loadable"),
        ({"config": CONFIG + "# CONFIG_IP_VS is not set\n"}, "absent"),
        ({"config": CONFIG + "CONFIG_IP_VS_IPV6=y\n"}, "absent"),
        ({"config": "what is this"}, "unknown"),
        ({"builtin": BUILTIN}, "there"),
        ({"builtin": OTHER, "dep": DEP}, "loadable"),
        ({"builtin": OTHER, "dep": COMPRESSED}, "loadable"),
        ({"builtin": OTHER, "dep": "kernel/net/netfilter/ipvs/ip_vs_rr.ko:\n"}, "absent"),
        ({"dep": OTHER}, "unknown"),
        ({"builtin": OTHER}, "unknown"),
    ],
)
def test_whether_a_kernel_has_ipvs(tmp_path: Path, contents: dict[str, str], presence: str) -> None:
    made = files(tmp_path, **contents)
    assert made.presence("ip_vs", "CONFIG_IP_VS") == presence
    said = {"there": "present", "loadable": "present", "absent": "absent", "unknown": "unknown"}[presence]
    found = kernel(made, has_ipvs=False)
    assert (found.release, found.ipvs) == (RELEASE, said)
    assert kernel(made, has_ipvs=True).ipvs == "present"


def test_the_configuration_that_a_running_kernel_has_in_it(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    with gzip.open(tmp_path / "proc/config.gz", "wt") as file:
        file.write(CONFIG + "CONFIG_IP_VS=m\n")
    assert KernelFiles(tmp_path, RELEASE).presence("ip_vs", "CONFIG_IP_VS") == "loadable"
    (tmp_path / "proc/config.gz").write_bytes((tmp_path / "proc/config.gz").read_bytes()[:30])
    assert KernelFiles(tmp_path, RELEASE).presence("ip_vs", "CONFIG_IP_VS") == "unknown"
    (tmp_path / "proc/config.gz").write_bytes(b"no gzip")
    assert KernelFiles(tmp_path, RELEASE).presence("ip_vs", "CONFIG_IP_VS") == "unknown"


def test_everything_is_of_the_node_that_is_named() -> None:
    found = gather("n7", running=[process("kube-router")])
    assert {e.place.node for e in found} == {"n7"}
    assert any(isinstance(e, OtherProxy) for e in found)
