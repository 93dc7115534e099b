"""`kube-proxy-nft detect` as its users meet it: what it reads, prints and returns."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.detect import arguments, command, output
from proxy.detect.api_reader import Transport
from proxy.detect.command import Sources, kubeconfig
from proxy.detect.evidence import (
    Evidence,
    Kernel,
    Place,
    ServedMode,
)
from proxy.detect.files import read_file
from proxy.detect.findings import Report
from proxy.detect.objects import read_objects
from proxy.errors import ConfigError, SourceError, UsageError
from tests.cluster_api import ClusterApi, config, config_map, daemonset, node, pod_of

IPVS = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n"


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arguments.add_parser(parser.add_subparsers())
    return parser.parse_args(["detect", *argv])


def forbidden(*_: object) -> Any:
    raise AssertionError("this source was not to be asked")


def sources(
    node_evidence: Callable[..., Iterable[Evidence]] = forbidden,
    connect: Callable[[str], Transport] = forbidden,
    **environment: str,
) -> Sources:
    def read(path: str, data: bytes) -> list[Evidence]:
        return read_file(path, data, expected=True)

    return Sources(read, node_evidence, read_objects, connect, environment)


class Ran:
    def __init__(self, code: int, out: str) -> None:
        self.code, self.out = code, out

    @property
    def report(self) -> Report:
        """Its JSON."""
        return msgspec.json.decode(self.out, type=Report, strict=True)

    @property
    def checks(self) -> dict[str, str]:
        return {finding.check: finding.severity for finding in self.report.findings}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    def run(*argv: str, of: Sources | None = None) -> Ran:
        written: list[str] = []

        def put(text: str) -> bool:
            written.append(text)
            return True

        monkeypatch.setattr(output, "put", put)
        code = command.run(parsed(*argv), of or sources())
        return Ran(code, "".join(written))

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.conf"
    path.write_text(IPVS)
    return path


# -- A file alone ------------------------------------------------------------------------------------------------------


def test_a_file(run: Callable[..., Ran], file: Path) -> None:
    """No other source is asked: see `sources`."""
    done = run("--config", str(file), "--kubernetes-version", "1.36", "-o", "json")
    assert done.code == 0 and done.checks == {"ipvs-mode": "deprecated"}
    (item,) = done.report.findings[0].evidence
    assert item.place == Place("file", str(file), line=3)


@pytest.mark.parametrize(
    ("mode", "version", "codes"),
    [
        ("ipvs", "1.34", (0, 0)),  # a notice
        ("ipvs", "1.36", (0, 1)),
        ("ipvs", "1.43", (0, 1)),
        ("nftables", "1.43", (0, 0)),
        ("", "1.36", (0, 0)),
        ("", "v1.37.0-gke.1", (0, 1)),
        ("userspace", "1.36", (0, 1)),
    ],
)
def test_exit_codes(mode: str, version: str, codes: tuple[int, int], run: Callable[..., Ran], file: Path) -> None:
    file.write_text(config(mode))
    argv = ["--config", str(file), "--kubernetes-version", version]
    assert (run(*argv).code, run(*argv, "--exit-code").code) == codes


@pytest.mark.parametrize("more", [[], ["--exit-code"], ["-o", "json"], ["--watch"]])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("", "nothing of a kube-proxy"),
        ("kind: Service\napiVersion: v1\nmetadata: {name: kube-proxy}\n", "nothing of a kube-proxy"),
        ("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nipvs: {\nmode: ipvs\n", "line"),
        (b"\0\1\2", "no text"),
    ],
)
def test_a_file_that_cannot_be_judged(content: str | bytes | None, says: str, more: list[str], file: Path) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as raised:
        command.run(parsed("--config", str(file), *more), sources())
    assert raised.value.exit_code == 3
    assert str(file) in str(raised.value) and says in str(raised.value) and raised.value.remedy


def test_what_is_broken_after_the_mode_does_not_hide_it(run: Callable[..., Ran], file: Path) -> None:
    file.write_text(IPVS + "iptables: [\n")
    done = run("--config", str(file), "--kubernetes-version", "1.36", "-o", "json")
    assert done.checks == {"ipvs-mode": "deprecated", "unreadable": "notice"}


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="directory"):
        command.run(parsed("--config", str(tmp_path)), sources())


def test_the_version_of_a_cluster_for_a_file(run: Callable[..., Ran], file: Path) -> None:
    api = ClusterApi(version="v1.40.1")
    done = run("--config", str(file), "--kubeconfig", "k", "-o", "json", of=sources(connect=lambda path: api))
    assert done.checks == {"ipvs-mode": "broken"} and api.asked == ["/version"]


def test_a_cluster_that_does_not_answer_is_no_reason_not_to_judge_a_file(run: Callable[..., Ran], file: Path) -> None:
    api = ClusterApi()
    api.is_away = True
    done = run("--config", str(file), "--kubeconfig", "k", "-o", "json", of=sources(connect=lambda path: api))
    assert done.checks == {"ipvs-mode": "deprecated", "unreadable": "notice"} and done.report.kubernetes == ""


# -- The command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["--kubernetes-version", "latest"],
        ["--kubernetes-version", ""],
        ["--config", ""],
        ["--config", "a", "--all-nodes"],
        ["-o", "xml"],
        ["--conf", "a"],
        ["file"],
    ],
)
def test_a_wrong_command_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parsed(*argv)
    assert raised.value.code == 2 and capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["--config", "-", "--watch"],
        ["--config", "a", "--node", "n1"],
        ["--config", "a", "--proxy-url", "http://127.0.0.1:1"],
        ["--all-nodes", "--node", "n1"],
    ],
)
def test_options_that_do_not_go_together(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        command.run(parsed(*argv), sources())


# -- This node ---------------------------------------------------------------------------------------------------------


def live(mode: str) -> Callable[..., list[Evidence]]:
    def gather(name: str, urls: Sequence[str] | None) -> list[Evidence]:
        url = (urls or ["http://127.0.0.1:10249/proxyMode"])[0]
        return [ServedMode(place=Place("port", url, node=name), mode=mode)]

    return gather


def test_this_node(run: Callable[..., Ran]) -> None:
    done = run("--node", "N1", "-o", "json", "--exit-code", of=sources(live("ipvs")))
    assert done.code == 1 and done.report.nodes == ("n1",) and done.report.findings[0].check == "ipvs-mode"


def test_where_the_proxy_is_asked(run: Callable[..., Ran]) -> None:
    url = "http://127.0.0.1:9/proxyMode"
    done = run("--proxy-url", url, "-o", "json", of=sources(live("ipvs")))
    assert done.report.evidence[0].place.name == url


def test_the_api_servers_view_of_this_node(run: Callable[..., Ran]) -> None:
    """Both are of one node: what is configured, and what runs."""
    owner = daemonset()
    api = ClusterApi([owner, config_map(config("nftables")), pod_of(owner, "n1"), node("n1"), node("n2")])
    done = run("--node", "n1", "--kubeconfig", "k", "-o", "json", of=sources(live("ipvs"), lambda path: api))
    assert done.report.nodes == ("n1",) and done.report.kubernetes == "v1.36.2"
    assert done.checks == {"ipvs-mode": "deprecated", "restart-pending": "notice"}


def test_a_kernel_that_two_know_is_judged_once(run: Callable[..., Ran]) -> None:
    def gather(name: str, _urls: object) -> list[Evidence]:
        return [Kernel(place=Place("kernel", "uname", node=name), release="4.18.0-553.el8")]

    api = ClusterApi([node("n1", "4.18.0-553.el8")])
    done = run("--node", "n1", "--kubeconfig", "k", "-o", "json", of=sources(gather, lambda path: api))
    assert [finding.check for finding in done.report.findings] == ["kernel-too-old"]


def test_the_account_of_a_pod_is_used(run: Callable[..., Ran]) -> None:
    api, asked = ClusterApi([node("n1")]), list[str]()
    of = sources(live("nftables"), lambda path: asked.append(path) or api, KUBERNETES_SERVICE_HOST="10.96.0.1")  # type: ignore[func-returns-value]
    assert run("--node", "n1", "-o", "json", of=of).report.kubernetes == "v1.36.2" and asked == [""]


def broken(_path: str) -> Transport:
    raise SourceError("the kubeconfig", "it is broken", "mend it")


def test_a_pod_without_a_usable_account_still_looks_at_its_node(run: Callable[..., Ran]) -> None:
    done = run("-o", "json", of=sources(live("nftables"), broken, KUBERNETES_SERVICE_HOST="10.96.0.1"))
    assert done.code == 0 and done.checks == {"unreadable": "notice"}


def test_a_given_kubeconfig_that_is_broken_is_an_error() -> None:
    with pytest.raises(SourceError):
        command.run(parsed("--kubeconfig", "k"), sources(live("nftables"), broken))


def test_an_api_server_that_is_away_is_no_error(run: Callable[..., Ran]) -> None:
    api = ClusterApi()
    api.is_away = True
    done = run("--kubeconfig", "k", "-o", "json", of=sources(live("ipvs"), lambda path: api))
    assert done.code == 0 and done.checks == {"ipvs-mode": "deprecated", "unreadable": "notice"}


def test_kubeconfigs_of_a_workstation_do_not_count_for_a_node(run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text("x")
    run("-o", "json", of=sources(live("nftables"), KUBECONFIG="/k", HOME=str(tmp_path)))


# -- All nodes ---------------------------------------------------------------------------------------------------------


def kubeadm(mode: str) -> ClusterApi:
    owner = daemonset()
    names = ("a", "b")
    return ClusterApi([owner, config_map(config(mode)), *(pod_of(owner, n) for n in names), *map(node, names)])


def test_all_nodes(run: Callable[..., Ran]) -> None:
    of = sources(connect=lambda path: kubeadm("ipvs"))
    done = run("--all-nodes", "--exit-code", of=of)
    assert done.code == 1
    assert re.search(r"^a  .*  ipvs  .*ipvs-mode$", done.out, re.MULTILINE)
    assert run("--all-nodes", "-o", "json", of=of).report.nodes == ("a", "b")


def test_a_version_that_is_given_goes_before_the_clusters(run: Callable[..., Ran]) -> None:
    of = sources(connect=lambda path: kubeadm("ipvs"))
    done = run("--all-nodes", "-o", "json", "--kubernetes-version", "1.43", of=of)
    assert done.report.kubernetes == "1.43" and done.checks == {"ipvs-mode": "broken"}


@pytest.mark.parametrize("away", [True, False])
def test_a_cluster_of_which_nothing_can_be_read_is_not_well(away: bool) -> None:
    """A check that passes because it could not look would be worse than none."""
    api = kubeadm("ipvs")
    api.is_away = away
    api.forbidden = {"daemonsets", "pods", "configmaps", "nodes"}
    with pytest.raises(SourceError) as raised:
        command.run(parsed("--all-nodes", "--exit-code"), sources(connect=lambda path: api))
    assert raised.value.exit_code == 4 and raised.value.remedy
    assert away or "403" in str(raised.value)


def test_which_kubeconfig(tmp_path: Path) -> None:
    first, second, home = tmp_path / "first", tmp_path / "second", tmp_path / ".kube/config"
    environment = {"HOME": str(tmp_path)}
    assert kubeconfig(None, {}) == kubeconfig(None, environment) == ""
    home.parent.mkdir()
    home.write_text("")
    assert kubeconfig(None, environment) == str(home)
    environment["KUBECONFIG"] = f"{first}:{second}"
    assert kubeconfig(None, environment) == str(first)  # neither is there: say so of the first
    second.write_text("")
    assert kubeconfig(None, environment) == str(second)
    assert kubeconfig("given", environment) == "given"


def test_text_for_terminals(run: Callable[..., Ran], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["--config", str(file), "--kubernetes-version", "1.36"]
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033" not in run(*argv).out
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    assert "\033[1;33mDEPRECATED" in run(*argv).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in run(*argv).out
