"""The command line as its users meet it: a process, its exit code, what it says, and what is in the kernel after it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog

from proxy import cli, logs
from proxy.config import load_config
from proxy.errors import EXIT_CODES
from rules.errors import Failure, KernelUnreachable, TransactionError
from rules.layout import LAYOUTS
from rules.objects import Family, Table
from tests.netns import Namespace
from tests.objects import endpoint_slice, list_of, service

REPO = Path(__file__).parents[1]
OTHERS = """
table ip other { chain c { type filter hook input priority 0; policy accept; ip saddr 192.0.2.1 drop; }; }
table inet kube-proxy { set s { type ipv4_addr; elements = { 192.0.2.2 }; }; }
table ip6 kube-proxy-nft-not { chain c { accept; }; }
"""
NSENTER, SETPRIV = (shutil.which(name) or name for name in ("nsenter", "setpriv"))
AS_NOBODY = [
    "-c",
    """
import os, sys
from proxy import cli, manifests
os.setgroups([]), os.setgid(65534), os.setuid(65534)
sys.exit(cli.main(sys.argv[1:]))
    """,
]
"""An ordinary user need not be able to read the checkout: it may be in root's home. So imports come first."""

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPO)}
for variable in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
    ENVIRONMENT.pop(variable, None)


@contextlib.contextmanager
def started(argv: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command that is to end by itself; on the way out, it does not run any more."""
    pipes = {"stderr": subprocess.PIPE} | options
    with subprocess.Popen(argv, env=ENVIRONMENT, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


class Result:
    """What a command did. `events` are the lines of its log, each of which must be a JSON event."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.err.splitlines()]

    def of(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] in names]

    def failure(self, code: int) -> str:
        """The one error that it ended with."""
        assert self.code == code in EXIT_CODES, self.err
        [failed] = [event for event in self.events if event["level"] == "error"]
        assert failed["event"] == "failed" and failed["exit_code"] == code
        assert "Traceback" not in self.err
        return str(failed["error"])


def command(namespace: Namespace | None = None) -> list[str]:
    enter = [NSENTER, f"--net=/proc/{os.getpid()}/fd/{namespace.descriptor}"] if namespace else []
    return [*enter, sys.executable, "-m", "proxy"]


def run(*arguments: str | Path, namespace: Namespace | None = None, before: Sequence[str] = (), **more: Any) -> Result:
    argv = [*command(namespace), *map(str, arguments)]
    at = argv.index(sys.executable)
    if before is AS_NOBODY:
        argv[at + 1 : at + 3] = before  # in the place of -m proxy
    elif before:  # nsenter needs the privileges that `before` gives up
        argv[at:at] = before
    options: dict[str, Any] = {"env": ENVIRONMENT, "cwd": "/", "text": True, "timeout": 60} | more
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return Result(subprocess.run(argv, check=False, **options))


@pytest.fixture
def manifests(public: Path) -> Path:
    """One Service with two endpoints."""
    directory = public / "manifests"
    directory.mkdir()
    good = [service("good", "10.96.0.1"), endpoint_slice("good", "10.244.0.1", "10.244.0.2")]
    (directory / "good.json").write_text(list_of(*good))
    return directory


def listed(namespace: Namespace, name: str) -> str:
    return namespace.nft(
        "list", "map" if name in ("endpoints", "cluster-ip-ports") else "set", "ip", "kube-proxy-nft", name
    )


def held(namespace: Namespace) -> list[object]:
    """What is in our tables, whoever owns them."""
    found = [namespace.kernel.dump(layout.table) for layout in LAYOUTS.values()]
    return [(table.sets, table.chains) for table in found if table]


def tables(namespace: Namespace) -> set[str]:
    return set(namespace.nft("list", "tables").splitlines())


OURS = {"table ip kube-proxy-nft", "table ip6 kube-proxy-nft"}


def unexpected(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What an agent has no reason to complain of: the manifests have no Node, and the configurations no mode."""
    told = ("node_not_found", "deprecation_found")
    return [event for event in events if event["level"] != "info" and event["event"] not in told]


# The commands.


def test_run_once_programs_and_ends(namespace: Namespace, manifests: Path) -> None:
    done = run("run", "--once", "--manifests", manifests, namespace=namespace)
    assert done.code == 0, done.err
    assert [event["event"] for event in done.events] == ["starting", "programmed"]
    assert tables(namespace) == OURS
    assert '10.96.0.1 . tcp . 80 comment "default/good:http"' in listed(namespace, "cluster-ip-ports")
    assert "10.96.0.1 . tcp . 80 . 1 : 10.244.0.2 . 8080" in listed(namespace, "endpoints")


def test_cleanup_removes_our_tables_and_nothing_else(namespace: Namespace, manifests: Path) -> None:
    namespace.nft("-f", "-", stdin=OTHERS)
    others = namespace.nft("list", "ruleset")
    assert run("run", "--once", "--manifests", manifests, namespace=namespace).code == 0
    assert tables(namespace) > OURS
    for _ in range(2):  # the second time there is nothing to remove
        done = run("cleanup", namespace=namespace)
        assert done.code == 0, done.err
        assert namespace.nft("list", "ruleset") == others


def test_a_restart_replaces_the_tables_in_one_transaction(namespace: Namespace, manifests: Path) -> None:
    namespace.nft("-f", "-", stdin=OTHERS)
    assert run("run", "--once", "--manifests", manifests, namespace=namespace).code == 0
    namespace.nft("add", "element", "ip", "kube-proxy-nft", "cluster-ips", "{ 192.0.2.9 }")  # a former version's
    (manifests / "more.json").write_text(list_of(service("more", "10.96.0.9")))
    before = generation(namespace)
    assert run("run", "--once", "--manifests", manifests, namespace=namespace).code == 0
    assert generation(namespace) == before + 1
    assert "192.0.2.9" not in listed(namespace, "cluster-ips")
    assert "10.96.0.9" in listed(namespace, "cluster-ips")
    assert "table ip other" in tables(namespace)


def generation(namespace: Namespace) -> int:
    """The number of the ruleset's last transaction in this namespace."""
    code = (
        "from rules.kernel import *; from rules.netlink import *; import socket\n"
        "k = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER); k.bind((0, 0))\n"
        "k.send(message(16, 0, 1, 0, b''))\n"
        "reply = next(messages(k.recv(65536)))\n"
        "print(int.from_bytes(dict(attributes(reply.body[4:]))[1]))\n"
    )
    argv = [*command(namespace)[:-2], "-c", code]
    return int(subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout)


def test_render_touches_nothing_and_needs_nothing(namespace: Namespace, manifests: Path) -> None:
    environment = ENVIRONMENT | {"PATH": "/nonexistent"}  # no nft
    before = generation(namespace)
    done = run("render", "--manifests", manifests, namespace=namespace, before=AS_NOBODY, env=environment)
    assert done.code == 0, done.err
    assert done.events == []
    assert generation(namespace) == before and tables(namespace) == set()
    namespace.nft("-c", "-f", "-", stdin=done.out)
    namespace.nft("-f", "-", stdin=done.out)
    rendered = [namespace.kernel.dump(layout.table) for layout in LAYOUTS.values()]
    assert run("run", "--once", "--manifests", manifests, namespace=namespace).code == 0
    assert rendered == [namespace.kernel.dump(layout.table) for layout in LAYOUTS.values()]


def test_render_writes_utf_8_whatever_the_locale_is(manifests: Path) -> None:
    odd = list_of(service("ünïcode-服务", "10.96.0.2"), endpoint_slice("ünïcode-服务", "10.244.0.3"))
    (manifests / "odd.json").write_text(odd)
    argv = [*command(), "render", "--manifests", str(manifests)]
    done = subprocess.run(argv, env=ENVIRONMENT | {"PYTHONIOENCODING": "latin-1"}, capture_output=True, check=True)
    assert 'comment "default/ünïcode-服务:http"' in done.stdout.decode()


ODD_NAMES = {
    "longest": ("n" * 63, "s" * 63, "p" * 15),
    "unicode": ("namensräume", "服务" * 20, "pört"),
    "quotes": ("default", 'a"b\\', "http"),
    "rules": ("default", 'a" }\n}; flush ruleset; table ip x {', "http"),
    "control": ("default", "a\0b\x1b[31m\r", "http"),
}


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("render", "longest"),
        ("render", "unicode"),
        ("render", "quotes"),
        ("render", "rules"),
        ("render", "control"),
        ("run", "longest"),
        ("run", "unicode"),
        ("run", "quotes"),
        ("run", "rules"),
        ("run", "control"),
    ],
)
def test_nft_reads_the_oddest_names(namespace: Namespace, manifests: Path, way: str, name: str) -> None:
    """Rendered, and listed by nft after they were programmed."""
    space, service_name, port = ODD_NAMES[name]
    objects = [
        service(service_name, "10.96.0.2", ports=[{"name": port, "port": 80}], namespace=space),
        endpoint_slice(service_name, "10.244.0.3", ports=[{"name": port, "port": 8080}], namespace=space),
    ]
    (manifests / "odd.json").write_text(list_of(*objects))
    if way == "run":
        assert run("run", "--once", "--manifests", manifests, namespace=namespace).code == 0
        text = namespace.nft("list", "ruleset")
        namespace.nft("flush ruleset")
    else:
        text = run("render", "--manifests", manifests).out
    namespace.nft("-f", "-", stdin=text)
    assert "10.96.0.2 . tcp . 80" in listed(namespace, "cluster-ip-ports")
    assert tables(namespace) == OURS


# Standard output and standard error.


def test_output_that_cannot_be_written(manifests: Path) -> None:
    with open("/dev/full", "w") as full:
        done = run("render", "--manifests", manifests, stdout=full)
    assert done.failure(1) == "standard output: No space left on device"


def test_a_reader_that_has_had_enough_is_no_error(manifests: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = run("render", "--manifests", manifests, stdout=write)
    os.close(write)
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("stderr", ["nobody reads", "full", "closed"])
def test_a_log_that_cannot_be_written_stops_nothing(namespace: Namespace, manifests: Path, stderr: str) -> None:
    (manifests / "empty.yaml").write_text("")
    arguments = ["run", "--once", "--manifests", str(manifests)]
    if stderr == "closed":
        done = run(*arguments, namespace=namespace, before=["sh", "-c", 'exec "$@" 2>&-', "sh"])
    elif stderr == "full":
        with open("/dev/full", "w") as full:
            done = run(*arguments, namespace=namespace, stderr=full)
    else:
        read, write = os.pipe()
        os.close(read)
        done = run(*arguments, namespace=namespace, stderr=write)
        os.close(write)
    assert done.code == 0
    assert "10.96.0.1" in listed(namespace, "cluster-ip-ports")


def test_a_terminal_gets_text() -> None:
    master, slave = os.openpty()
    run("run", "--manifests", "/nonexistent", stderr=slave)
    os.close(slave)
    text = os.read(master, 65536).decode()
    assert "there is no such directory" in text
    assert not text.lstrip().startswith("{")


def test_the_help_texts(capsys: pytest.CaptureFixture[str]) -> None:
    commands = ("", "run", "render", "cleanup", "config check", "detect", "explain", "migrate", "status", "trace")
    for arguments in map(str.split, commands):
        with pytest.raises(SystemExit) as end:
            cli.main([*arguments, "--help"])
        assert end.value.code == 0
        text = capsys.readouterr().out
        assert all(len(line) <= 100 for line in text.splitlines())
        assert "kube-proxy-nft" in text
        if not arguments:
            assert all(f"{code:3}  {meaning}" in text for code, meaning in EXIT_CODES.items())
        else:
            assert "--log-level LEVEL" in text


# What is wrong with the command line, the configuration, the source.


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["run", "--fly"],
        ["render"],
        ["run", "--manifests", ""],
        ["run", "--kubeconfig", ""],
        ["run", "--config", ""],
        ["cleanup", "--log-level", "loud"],
        ["--fly"],
        ["--masquerade-all", "false"],
        ["--conf=x"],
        ["config"],
        ["config", "check"],
        ["config", "check", "-o", "toml", "x"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.code == 2 and done.out == ""
    assert done.err.splitlines()[-1].startswith("kube-proxy-nft")
    assert ": error: " in done.err and "Traceback" not in done.err


@pytest.mark.parametrize("other", ["--kubeconfig=y", "--master=http://127.0.0.1:1"])
def test_one_source_of_objects(namespace: Namespace, other: str) -> None:
    done = run("run", "--manifests", "x", other, namespace=namespace)
    assert "both were given" in done.failure(2)


def test_flags_with_impossible_values_are_all_named() -> None:
    error = run("--oom-score-adj=7000", "--cluster-cidr=x", "--v=1").failure(2)
    assert "--oom-score-adj is '7000'" in error and "--cluster-cidr is 'x'" in error


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["cannot be read: No such file"]),
        ("", ["is empty"]),
        ("a: [", ["line 1"]),
        ("kind: Pod\napiVersion: v1\n", ["KubeProxyConfiguration"]),
        (
            "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nclusterCIDR: 10.0.0.0/40\n",
            ["clusterCIDR", "10.0.0.0/40"],
        ),
    ],
    ids=["missing", "empty", "broken", "other kind", "wrong value"],
)
def test_a_wrong_configuration(tmp_path: Path, manifests: Path, content: str | None, words: list[str]) -> None:
    config = tmp_path / "config.yaml"
    if content is not None:
        config.write_text(content)
    error = run("run", "--config", config, "--manifests", manifests).failure(3)
    assert error.startswith(f"{config}: ")
    assert all(word in error for word in words)


def test_an_unknown_field_of_the_configuration_is_told_and_not_fatal(tmp_path: Path, manifests: Path) -> None:
    config = tmp_path / "config.yaml"
    head = "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\n"
    config.write_text(head + "clusterCIRD: 10.244.0.0/16\n")
    done = run("render", "--config", config, "--manifests", manifests)
    assert done.code == 0
    [warning] = done.events
    assert warning["event"] == "config_field_unknown" and warning["field"] == "clusterCIRD"
    assert "clusterCIDR" in warning["reason"]


def test_a_directory_that_cannot_be_used(namespace: Namespace, public: Path) -> None:
    file, closed = public / "file", public / "closed"
    file.write_text("")
    closed.mkdir(mode=0)
    obeys_modes = [SETPRIV, "--bounding-set=-dac_override,-dac_read_search"]
    for name in ("run", "render"):
        for path, words in ((public / "none", "no such directory"), (file, "not a directory")):
            assert words in run(name, "--manifests", path, namespace=namespace).failure(4)
        done = run(name, "--manifests", closed, namespace=namespace, before=obeys_modes)
        assert "permission denied" in done.failure(4)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), ("", "kubeconfig"), ("a: [", "not YAML"), ("[]", "not a kubeconfig"), ("a: b", "config")],
    ids=["missing", "empty", "broken", "list", "nothing in it"],
)
def test_a_kubeconfig_that_cannot_be_used(tmp_path: Path, content: str | None, words: str) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    if content is not None:
        kubeconfig.write_text(content)
    error = run("run", "--kubeconfig", kubeconfig).failure(4)
    assert error.startswith(f"{kubeconfig}: ") and words in error


def test_no_source_at_all() -> None:
    assert "name a kubeconfig" in run("run").failure(4)


# What is wrong with the kernel.


@pytest.mark.parametrize("arguments", [["run", "--once"], ["cleanup"]], ids=["run", "cleanup"])
def test_no_permission(namespace: Namespace, manifests: Path, arguments: list[str]) -> None:
    if "run" in arguments:
        arguments = [*arguments, "--manifests", str(manifests)]
    error = run(*arguments, namespace=namespace, before=AS_NOBODY).failure(5)
    assert error.startswith("nftables: ") and "(run as root, or with the capability CAP_NET_ADMIN" in error


class Refusing:
    """A kernel that takes no transaction."""

    def __init__(self, *failures: Failure) -> None:
        self.error = TransactionError(failures)

    def has(self, table: Table) -> bool:
        return False

    def dump(self, table: Table, *, settled: bool = False) -> None:
        return None

    def commit(self, operations: Sequence[Any]) -> int:
        raise self.error

    def close(self) -> None:
        pass


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """main() in this process: what its one error event says."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def read() -> str:
        events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        [error] = [event["error"] for event in events if event["level"] == "error"]
        return str(error)

    return read


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        (Failure(None, errno.EOPNOTSUPP), 6, "CONFIG_NF_TABLES"),
        (Failure(None, errno.EMSGSIZE, "9 bytes do not fit"), 5, "9 bytes do not fit"),
        (Failure(None, errno.EPERM), 5, "CAP_NET_ADMIN"),
        (
            Failure(None, errno.ENOENT, "numgen"),
            6,
            "no numgen expression (load its module or use a kernel with CONFIG_",
        ),
        (Failure(None, errno.EINVAL), 7, "Invalid argument"),
    ],
    ids=["no nf_tables", "too large", "not permitted", "no numgen", "refused"],
)
def test_a_kernel_that_refuses(
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[], str],
    manifests: Path,
    failure: Failure,
    code: int,
    words: str,
) -> None:
    monkeypatch.setattr(cli, "Kernel", lambda: Refusing(failure))
    assert cli.main(["run", "--once", "--manifests", str(manifests)]) == code
    assert words in said()
    assert cli.main(["cleanup"]) == code
    assert words in said()


@pytest.mark.parametrize(("number", "code"), [(errno.EPERM, 5), (errno.EPROTONOSUPPORT, 6), (errno.EAFNOSUPPORT, 6)])
def test_no_netlink(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[], str], manifests: Path, number: int, code: int
) -> None:
    def unreachable() -> None:
        raise KernelUnreachable(number, "cannot open a netlink socket to netfilter")

    monkeypatch.setattr(cli, "Kernel", unreachable)
    assert cli.main(["run", "--once", "--manifests", str(manifests)]) == code
    assert said().startswith("nftables: cannot open a netlink socket to netfilter: ")


def test_a_bug_is_one_event(monkeypatch: pytest.MonkeyPatch, said: Callable[[], str], manifests: Path) -> None:
    monkeypatch.setattr(cli, "State", lambda _: 1 / 0)
    assert cli.main(["render", "--manifests", str(manifests)]) == 1
    assert said() == "ZeroDivisionError: division by zero"


# kube-proxy's command line, and its configuration.

CONFIG = "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.conf"
    path.write_text(CONFIG)
    return path


def test_the_command_line_and_the_configuration_of_kubeadm(namespace: Namespace, manifests: Path) -> None:
    """All that is ours is the source of objects, and the end."""
    kubeadm = REPO / "tests" / "data" / "config" / "kubeadm.yaml"
    kubeadms = [f"--config={kubeadm}", "--hostname-override=Node-1 "]
    done = run(*kubeadms, f"--manifests={manifests}", "--once", namespace=namespace)
    assert done.code == 0, done.err
    assert [event["event"] for event in done.events] == ["starting", "programmed"]
    assert done.events[0]["node"] == "node-1"


def test_what_becomes_of_each_flag_is_said(namespace: Namespace, manifests: Path, config: Path) -> None:
    flags = ["--proxy-mode=ipvs", "--ipvs-scheduler=rr", "--machine-id-file=x", "--healthz-port=7"]
    done = run(*flags, "--once", f"--manifests={manifests}", namespace=namespace)
    assert done.code == 0, done.err
    levels = {event["flag"]: event["level"] for event in done.of("flag_without_effect", "flag_deprecated")}
    expected = {"--proxy-mode": "warning", "--ipvs-scheduler": "info", "--machine-id-file": "info"}
    assert levels == expected | {"--healthz-port": "warning"}
    done = run(*flags, f"--config={config}", "--once", f"--manifests={manifests}", namespace=namespace)
    [ignored] = done.of("flags_ignored")
    assert ignored["flags"] == ["--proxy-mode", "--ipvs-scheduler", "--machine-id-file", "--healthz-port"]


def test_the_flag_cleanup(namespace: Namespace, manifests: Path) -> None:
    assert run("run", "--once", "--manifests", manifests, namespace=namespace).code == 0
    assert tables(namespace) == OURS
    done = run("--cleanup", "--proxy-mode=ipvs", namespace=namespace)
    assert done.code == 0, done.err
    assert tables(namespace) == set()


def test_the_flag_init_only(namespace: Namespace) -> None:
    flags = ["--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=1234s"]
    done = run("--init-only", *flags, namespace=namespace)
    assert done.code == 0, done.err
    values = {event["name"]: event["value"] for event in done.of("sysctl_set")}
    assert values["net.netfilter.nf_conntrack_tcp_timeout_established"] == 1234
    assert tables(namespace) == set()


def test_the_flag_write_config_to(tmp_path: Path) -> None:
    written = tmp_path / "written"
    done = run("--cluster-cidr=10.0.0.0/8", "--masquerade-all", "--v=3", f"--write-config-to={written}")
    assert done.code == 0 and [event["event"] for event in done.events] == ["config_written"]
    config = load_config(str(written))
    assert str(config.cluster_cidr.v4) == "10.0.0.0/8"
    assert config.nftables.masquerade_all and config.logging.verbosity == 3
    error = run("--write-config-to", tmp_path / "no" / "where").failure(2)
    assert "cannot be written: No such file or directory" in error


@pytest.mark.parametrize("arguments", [["--version"], ["--version=raw"], ["run", "--version=true"]], ids=" ".join)
def test_the_version(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("kube-proxy-nft ")


@pytest.mark.parametrize(
    ("arguments", "body", "level", "json_"),
    [
        ([], "", "info", None),
        ([], "logging: {format: text}", "info", None),
        ([], "logging: {format: json, verbosity: 3}", "info", True),
        ([], "logging: {verbosity: 4}", "debug", None),
        (["--v=0"], "logging: {verbosity: 4}", "info", None),
        (["-v", "5"], "", "debug", None),
        (["-v", "5", "--log-level", "warning"], "", "warning", None),
        (["--logging-format=text"], "logging: {format: json}", "info", False),
        (["--logging-format=json"], "", "info", True),
    ],
)
def test_how_the_log_is_written(
    monkeypatch: pytest.MonkeyPatch, config: Path, arguments: list[str], body: str, level: str, json_: bool | None
) -> None:
    config.write_text(CONFIG + body)
    calls: list[tuple[str, bool | None]] = []
    monkeypatch.setattr(logs, "configure", lambda level, json=None: calls.append((level, json)))
    monkeypatch.setattr(cli, "Kernel", lambda: Refusing(Failure(None, errno.EPERM)))
    assert cli.main([*arguments, "--config", str(config), "--manifests=x", "--kubeconfig=y"]) == 2
    assert calls[-1] == (level, json_)


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_config_check_prints_a_configuration_that_means_the_same(tmp_path: Path, config: Path, output: str) -> None:
    config.write_text(CONFIG + "clusterCIDR: 10.0.0.0/8\nmode: ipvs\nipvs: {scheduler: rr}\nclusterCIRD: x\n")
    done = run("config", "check", config, "-o", output)
    assert done.code == 0, done.err
    assert [(event["event"], event["field"]) for event in done.events] == [
        ("config_field_unknown", "clusterCIRD"),
        ("config_field_without_effect", "mode"),
        ("config_field_without_effect", "ipvs.scheduler"),
    ]
    assert done.out.startswith("{") is (output == "json")
    again = run("config", "check", "-", "-o", output, input=done.out)
    assert (again.code, again.err, again.out) == (0, "", done.out)
    config.write_text(done.out)
    assert str(load_config(str(config)).cluster_cidr.v4) == "10.0.0.0/8"


def test_config_check_names_every_fault(config: Path) -> None:
    config.write_text(CONFIG + "oomScoreAdj: many\nconntrack: {min: -1}\n")
    error = run("config", "check", config).failure(3)
    assert error.startswith(f"{config}: ") and "oomScoreAdj is 'many'" in error and "conntrack.min is -1" in error
    assert run("config", "check", "-", input="").failure(3).startswith("standard input: is empty")
    assert "No such file" in run("config", "check", "/nonexistent").failure(3)


def test_config_check_doubts_what_does_not_go_together(config: Path) -> None:
    config.write_text(CONFIG + "bindAddress: fd00::1\nclusterCIDR: 10.0.0.0/8\nnodePortAddresses: [10.0.0.0/8]\n")
    done = run("config", "check", config)
    assert done.code == 0
    assert {event["field"] for event in done.of("config_field_doubtful")} == {"clusterCIDR", "nodePortAddresses"}


def test_a_configuration_that_changes_ends_run_and_the_rules_stay(
    namespace: Namespace, manifests: Path, config: Path
) -> None:
    config.write_text(CONFIG + "oomScoreAdj: 1000\n")  # a lower one may not be allowed
    argv = [*command(namespace), "run", "--manifests", str(manifests), "--config", str(config)]
    with started(argv) as process:
        assert process.stderr
        while json.loads(process.stderr.readline())["event"] != "programmed":
            pass
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip() == "1000"
        before = held(namespace)
        config.write_text(CONFIG + "oomScoreAdj: 1000\nnftables: {masqueradeAll: true}\n")
        assert process.wait(timeout=20) == 8
        events = [json.loads(line) for line in process.stderr]
    assert [event["event"] for event in events if "config" in event["event"]] == ["config_file_changed"]
    assert (events[-1]["event"], events[-1]["exit_code"]) == ("ended", 8)
    assert unexpected(events) == []
    assert held(namespace) == before


# What is wrong with the objects.

LONG_NAME = "n" * 63
BAD = {
    "addresses": [service("address", "10.96.0.256"), service("colon", "fd00::zz"), service("loopback", "127.0.0.1")],
    "ports": [
        service("range", "10.96.0.11", ports=[{"name": "http", "port": 70000}]),
        service("zero", "10.96.0.12", ports=[{"name": "http", "port": 0}]),
        service("enormous", "10.96.0.13", ports=[{"name": "http", "port": 10**12}]),
        service("text", "10.96.0.14", ports=[{"name": "http", "port": "80"}]),
        service("twice", "10.96.0.15", ports=[{"name": "a", "port": 80}, {"name": "a", "port": 81}]),
        service("protocol", "10.96.0.16", ports=[{"name": "a", "port": 80, "protocol": "ICMP"}]),
    ],
    "claims": [service("first", "10.96.0.20"), service("second", "10.96.0.20")],
    "duplicate-1": [service("duplicate", "10.96.0.21")],
    "duplicate-2": [service("duplicate", "10.96.0.22")],
    "endpoints": [endpoint_slice("good", "999.0.0.1", "10.244.0.3", name="good-2")],
    "shapes": [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shapeless"}}],
}
REPORTED = {
    "address": "'10.96.0.256' is not an IP address",
    "colon": "'fd00::zz' is not an IP address",
    "loopback": "'127.0.0.1' is a loopback address",
    "range": "70000 is not in 1..65535",
    "zero": "0 is not in 1..65535",
    "enormous": "spec.ports[0].port",
    "text": "spec.ports[0].port",
    "twice": "'a' is there twice",
    "protocol": "'ICMP' is none of TCP, UDP, SCTP",
    "second": "10.96.0.20:80/TCP belongs to Service default/first",
    "good-2": "'999.0.0.1' is not an IP address",
    "shapeless": "spec",
}


@pytest.fixture
def bad_manifests(manifests: Path) -> Path:
    for name, objects in BAD.items():
        (manifests / f"{name}.json").write_text(list_of(*objects))
    (manifests / "empty.yaml").write_text("")
    (manifests / "half.yaml").write_text("apiVersion: v1\nkind: Service\nmetadata: {name: half\n")
    (manifests / "binary.yaml").write_bytes(b"\x00\xff\x00\x01")
    return manifests


@pytest.mark.parametrize("name", ["run", "render"])
def test_each_problem_is_one_event_and_the_others_work(namespace: Namespace, bad_manifests: Path, name: str) -> None:
    once = ["--once"] if name == "run" else []
    done = run(name, *once, "--manifests", bad_manifests, namespace=namespace)
    assert done.code == 0, done.err
    if name == "render":
        namespace.nft("-f", "-", stdin=done.out)
    assert "Traceback" not in done.err
    problems = [e for e in done.events if e["level"] in ("warning", "error")]
    reasons: dict[str, list[str]] = {}
    for event in problems:
        if event["event"] in ("object_left_out", "manifest_object_bad"):
            reasons.setdefault(event["object"].partition("/")[2], []).append(event["reason"])
    assert reasons.keys() == REPORTED.keys(), done.err
    for object_name, [reason] in reasons.items():
        assert REPORTED[object_name] in reason
    assert [Path(e["path"]).name for e in done.of("manifest_empty")] == ["empty.yaml"]
    assert sorted(Path(e["path"]).name for e in done.of("manifest_broken")) == ["binary.yaml", "half.yaml"]
    assert [e["object"] for e in done.of("manifest_object_duplicate")] == ["Service default/duplicate"]
    assert all(event.get("remedy") for event in problems)
    assert len(problems) == len(REPORTED) + 4
    assert " : 10.244.0.3 . 8080" in listed(namespace, "endpoints")
    ips = listed(namespace, "cluster-ips")
    assert all(f"{ip}," in ips or f"{ip} " in ips for ip in ("10.96.0.1", "10.96.0.20", "10.96.0.21"))
    assert not any(f"10.96.0.{i}" in ips for i in (11, 12, 13, 14, 15, 16, 22, 256))


def test_more_endpoints_than_there_is_room_for(namespace: Namespace, manifests: Path) -> None:
    parts = [
        endpoint_slice("good", *(f"11.{i}.{j >> 8}.{j & 255}" for j in range(1000)), name=f"many-{i}")
        for i in range(70)
    ]
    (manifests / "many.json").write_text(list_of(*parts))
    done = run("run", "--once", "--manifests", manifests, namespace=namespace)
    assert done.code == 0, done.err
    [problem] = done.of("object_left_out")
    assert problem["object"] == "Service default/good" and "70002 endpoints; only 65536 are used" in problem["reason"]
    state = namespace.kernel.dump(LAYOUTS[Family.IPV4].table)
    assert state is not None
    assert len(state.sets["endpoints"].elements) == 65536
    assert len(state.sets["cluster-ip-ports"].elements) == 1


def test_render_tells_of_more_endpoints_than_there_is_room_for(manifests: Path) -> None:
    parts = [
        endpoint_slice("good", *(f"11.{i}.{j >> 8}.{j & 255}" for j in range(1000)), name=f"many-{i}")
        for i in range(66)
    ]
    (manifests / "many.json").write_text(list_of(*parts))
    [problem] = run("render", "--manifests", manifests).of("object_left_out")
    assert "only 65536 are used" in problem["reason"]


# Signals.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_run_and_leaves_the_rules(namespace: Namespace, manifests: Path, number: signal.Signals) -> None:
    argv = [*command(namespace), "run", "--manifests", str(manifests)]
    with started(argv) as process:
        assert process.stderr
        while json.loads(process.stderr.readline())["event"] != "programmed":
            pass
        before = held(namespace)
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
        assert unexpected(map(json.loads, process.stderr)) == []
    assert held(namespace) == before
    assert "10.96.0.1" in listed(namespace, "cluster-ips")


SLOW_IMPORT = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "proxy.cli":
            print("importing", flush=True)
            time.sleep(100)

sys.meta_path.insert(0, Slow())
from proxy.__main__ import main
sys.exit(main())
"""
STUCK = """
import sys, time
from proxy import cli

def never_mind(*_arguments, **_options):
    pass

def never(*_arguments, **_options):
    print("stuck", flush=True)
    time.sleep(100)

setattr(cli, "node_agent" if sys.argv[1] == "run" else "node_name", type("Stuck", (), {"run": never, "Surroundings": never_mind}))
sys.exit(cli.main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("code", [SLOW_IMPORT, STUCK], ids=["during imports", "in what does not end"])
def test_a_signal_ends_run_whatever_it_does(
    namespace: Namespace, manifests: Path, code: str, number: signal.Signals
) -> None:
    argv = [*command(namespace)[:-2], "-c", code, "run", "--manifests", str(manifests)]
    with started(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
        assert "Traceback" not in process.stderr.read()


def server_in(namespace: Namespace) -> socket.socket:
    """One that accepts connections on its loopback interface, and never answers."""
    namespace.run("ip", "link", "set", "lo", "up")
    return namespace.inside(lambda: socket.create_server(("127.0.0.1", 0)))


@pytest.mark.parametrize("answers", [False, True], ids=["unreachable", "stalled"])
def test_a_signal_ends_run_while_the_api_server_is_waited_for(namespace: Namespace, answers: bool) -> None:
    with server_in(namespace) as server:
        argv = [*command(namespace), "run", f"--master=http://127.0.0.1:{server.getsockname()[1]}"]
        held: list[Any] = []
        if not answers:
            server.close()
        with started(argv) as process:
            assert process.stderr
            if answers:
                held.append(server.accept())
            else:
                while "refused" not in process.stderr.readline():
                    pass
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0
            assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_an_early_signal_says_nothing(namespace: Namespace, manifests: Path, number: signal.Signals) -> None:
    argv = [*command(namespace), "run", "--manifests", str(manifests)]
    for delay in (0.06, 0.12, 0.2):  # it may hit anything: imports, start, the first transaction
        with started(argv) as process:
            time.sleep(delay)
            process.send_signal(number)
            _, said = process.communicate(timeout=10)
        # Python itself may be hit before it has come to us: while it imports `site`, it ends with 1.
        assert process.returncode in (0, -number) or (process.returncode == 1 and "site" in said), said
        assert f'File "{REPO}' not in said


def test_what_is_logged_is_json_or_text(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        logs.configure("warning", json=True)
        log = structlog.get_logger()
        log.info("not_shown")
        log.warning("shown", name="ü")
        assert json.loads(capsys.readouterr().err)["name"] == "ü"
        logs.configure("warning", json=False)
        log.warning("shown", name="ü")
        assert "shown" in capsys.readouterr().err
    finally:
        structlog.reset_defaults()
