"""`kube-proxy-nft migrate` as it is run: its options, formats, exit codes, files, and what it says meanwhile."""

from __future__ import annotations

import base64
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.apiserver import FakeApi
from proxy import cli
from proxy.migrate import bundle
from proxy.migrate.report import Proof
from tests import migrate_nodes as nodes
from tests.migrate_nodes import config, migrate, report_of, write_manifests

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifests(tmp_path_factory.mktemp("cluster"))


@pytest.fixture
def sources(manifests: Path) -> list[str]:
    return [f"--manifests={manifests}", f"--config={config('iptables')}"]


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as server:
        for item in nodes.objects():
            server.put(item)
        yield server


def errors(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs it in this process: exit code, and what it says on standard error."""

    def run(*arguments: str) -> tuple[int, str]:
        try:
            code = cli.main(["migrate", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        assert said.out == ""
        return code, said.err

    return run


Run = Callable[..., tuple[int, str]]


def test_without_dry_run(run: Run, sources: list[str]) -> None:
    for arguments in ([], sources):
        code, said = run(*arguments)
        assert code == 2 and "it only ever looks" in said and "--dry-run" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dry-run", "--bundle=x", "--node=n"], "--bundle and --node"),
        (["--dry-run", "--bundle=x", "--manifests=n"], "--bundle and --manifests"),
        (["--dry-run", "--bundle=x", "--here"], "--bundle and --here"),
        (["--bundle=x", "collect", "y"], "--bundle and migrate collect"),
        (["-o", "json", "collect", "y"], "it writes a bundle, and no report"),
        (["--manifests=x", "collect", "--kubeconfig=z", "y"], "--manifests and --kubeconfig"),
        (["--dry-run", "--manifests=x", "--kubeconfig=z"], "not allowed with"),
        (["--dry-run", "--root=/nonexistent"], "no such directory"),
        (["--dry-run", "-o", "pdf"], "invalid choice"),
        (["--dry-run", "--config="], "it is empty"),
        (["collect"], "FILE"),
        (["--dry"], "unrecognized"),
    ],
)
def test_wrong_command_lines(run: Run, arguments: list[str], words: str) -> None:
    code, said = run(*arguments)
    assert code == 2 and words in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--manifests=/nonexistent"], 4),
        (["--kubeconfig=/nonexistent"], 4),
        (["--bundle=/nonexistent"], 4),
        (["--manifests=.", "--config=/nonexistent"], 3),
        ([], 4),
    ],
)
def test_exit_codes_of_failures(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], code: int
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    found, said = run("--dry-run", *arguments)
    assert found == code
    [error] = [json.loads(line) for line in said.splitlines()]
    assert error["event"] == "failed" and error["exit_code"] == code and "Traceback" not in str(error)


def test_formats(sources: list[str], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """All of the same verdict, nothing on standard error."""
    found: dict[str, bytes] = {}
    codes = set()
    for form in ("text", "json", "yaml", "markdown", "html"):
        codes.add(cli.main(["migrate", "--dry-run", "-o", form, *sources]))
        said = capfdbinary.readouterr()
        assert said.err == b""
        found[form] = said.out
    report = json.loads(found["json"])
    assert codes == {report["exitCode"]} <= {0, 10, 11}
    assert yaml.safe_load(found["yaml"])["verdict"] == report["verdict"]
    assert found["html"].lower().startswith(b"<!doctype html>")
    assert b"\x1b" not in found["text"] and b"node0" in found["text"]
    assert found["markdown"].startswith(b"# ")


def test_blocked_where_services_are_hidden(sources: list[str], tmp_path: Path) -> None:
    empty = write_manifests(tmp_path / "empty", [])
    done = migrate(None, "--dry-run", "-o", "json", f"--manifests={empty}")
    assert report_of(done)["exitCode"] == done.returncode


def test_files(sources: list[str], tmp_path: Path) -> None:
    report, ruleset = tmp_path / "report.html", tmp_path / "rules.nft"
    done = migrate(None, "--dry-run", "-o", "html", f"--output-file={report}", f"--ruleset={ruleset}", *sources)
    assert done.stdout == b"" and done.stderr == b""
    assert report.read_text().lower().startswith("<!doctype html>")
    namespace = nodes.make("")
    loaded = namespace.run("nft", "--file", str(ruleset))
    namespace.close()
    assert loaded.returncode == 0, loaded.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "rules.nft"}


def test_files_that_cannot_be_written(sources: list[str]) -> None:
    for option in ("--output-file=/nonexistent/x", "--ruleset=/nonexistent/x"):
        done = migrate(None, "--dry-run", option, *sources)
        assert done.returncode == 2 and "cannot be written" in done.stderr.decode()
    done = migrate(None, "collect", *sources, "/nonexistent/x")
    assert done.returncode == 2 and "cannot be written" in done.stderr.decode()


def test_a_full_disk_is_no_wrong_command_line(sources: list[str]) -> None:
    for words in (
        ["--dry-run", "--output-file=/dev/full"],
        ["--dry-run", "--ruleset=/dev/full"],
        ["collect", "/dev/full"],
    ):
        done = migrate(None, *words, *sources)
        assert done.returncode == 1 and "No space left on device" in done.stderr.decode(), words
    for words in (["--dry-run"], ["collect", "-"]):
        command = [sys.executable, "-P", "-m", "proxy", "migrate", *words[:1], *sources, *words[1:]]
        with open("/dev/full", "wb") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env={"PYTHONPATH": str(nodes.REPO)})
        assert done.returncode == 1 and "No space left on device" in done.stderr.decode(), words


def test_a_bundle_through_pipes(sources: list[str]) -> None:
    made = migrate(None, "collect", *sources, "-")
    [told] = errors(made)
    assert told["event"] == "bundle_written" and told["node"] == "node0"
    command = [sys.executable, "-P", "-m", "proxy", "migrate", "--dry-run", "--bundle", "-", "-o", "json"]
    done = subprocess.run(command, input=made.stdout, capture_output=True, env={"PYTHONPATH": str(nodes.REPO)})
    assert report_of(done)["node"] == "node0"


def test_what_could_not_be_tried_there_is_tried_here(sources: list[str], tmp_path: Path) -> None:
    path = str(tmp_path / "b.json.gz")
    assert migrate(None, "collect", *sources, path).returncode == 0
    facts = bundle.read(path)
    assert facts.proof and facts.proof.status == "accepted"
    for status, kernel in (("refused", "6.1.0-elsewhere"), ("not-tried", os.uname().release)):
        facts.proof = Proof(status, "x", "6.1.0-elsewhere")  # type: ignore[arg-type]
        bundle.write(facts, path)
        report = report_of(migrate(None, "--dry-run", f"--bundle={path}", "-o", "json"))
        assert report["proof"]["kernel"] == kernel
        assert report["proof"]["status"] == ("refused" if status == "refused" else "accepted")


CERTIFICATE = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
SECRETS = ("t0p-s3cr3t", CERTIFICATE, "s3rv1ce-acc0unt")


def test_nothing_secret_is_in_a_bundle(api: FakeApi, tmp_path: Path) -> None:
    """Neither of the kubeconfig, nor of objects, nor of a configuration that has what it should not have."""
    for item in nodes.objects():
        item["metadata"]["annotations"] = {"x": SECRETS[0]}
        item["metadata"].setdefault("labels", {})["x"] = SECRETS[0]
        item["data"] = {"password": SECRETS[0]}
        api.put(item)
    api.token = SECRETS[2]
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    content = yaml.safe_load(Path(kubeconfig).read_text())
    content["users"].append({"name": "other", "user": {"token": SECRETS[0], "client-certificate-data": CERTIFICATE}})
    Path(kubeconfig).write_text(yaml.safe_dump(content))
    config_file = tmp_path / "config.conf"
    config_file.write_text(
        config("ipvs").read_text().rstrip().removesuffix("}")
        + f', "token": "{SECRETS[0]}", "users": [{{"token": "{SECRETS[0]}"}}]}}'
    )
    target = tmp_path / "b.json.gz"
    done = migrate(
        None,
        "collect",
        f"--kubeconfig={kubeconfig}",
        f"--config={config_file}",
        str(target),
        environment={"A_PASSWORD": SECRETS[0]},
    )
    assert done.returncode == 0, done.stderr
    facts = bundle.read(str(target))
    assert len(facts.objects["Service"]) > 10 and facts.present.document["mode"] == "ipvs"
    assert ("token", "unknown field") in facts.present.unknown  # named, without what it is
    text = subprocess.run(["gzip", "-dc", str(target)], capture_output=True, text=True).stdout
    for secret in (*SECRETS, "managedFields", "ownerReferences", "last-applied", "A_PASSWORD", "uid"):
        assert secret not in text, secret


def test_from_an_api_server(api: FakeApi, tmp_path: Path) -> None:
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    done = migrate(None, "--dry-run", "-o", "json", f"--kubeconfig={kubeconfig}", "--node=node0")
    report = report_of(done)
    assert report["node"] == "node0" and report["source"].startswith("API server 127.0.0.1")
    assert not report["compared"] and report["counts"]["services"] > 10
    assert any("elsewhere" in gap["cause"] or "interface here" in gap["cause"] for gap in report["gaps"])
    by_environment = migrate(None, "--dry-run", "-o", "json", environment={"KUBECONFIG": str(kubeconfig)})
    assert report_of(by_environment)["node"] == "node0"


def test_here_is_believed(api: FakeApi, tmp_path: Path) -> None:
    """On a node whose addresses its Node does not have (yet)."""
    namespace = nodes.make("nftables")
    namespace.run("ip", "addr", "flush", "dev", "eth0")
    manifests = write_manifests(tmp_path / "cluster")
    options = ["--dry-run", "-o", "json", f"--manifests={manifests}", f"--config={config('nftables')}"]
    without, told = (report_of(migrate(namespace, *options, *more)) for more in ([], ["--here"]))
    namespace.close()
    assert not without["compared"] and told["compared"]
    assert any("--here" in gap["remedy"] for gap in without["gaps"])


def test_a_server_that_does_not_answer(api: FakeApi, tmp_path: Path) -> None:
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    api.stop()
    done = migrate(None, "--dry-run", f"--kubeconfig={kubeconfig}")
    assert done.returncode == 4 and "127.0.0.1" in done.stderr.decode()


def test_a_token_that_is_refused(api: FakeApi, tmp_path: Path) -> None:
    api.token = "right"
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig", token="wrong")
    done = migrate(None, "--dry-run", f"--kubeconfig={kubeconfig}")
    assert done.returncode == 4 and "401" in done.stderr.decode()


def test_permissions_as_kube_proxy_has_them(api: FakeApi, tmp_path: Path) -> None:
    """Its account may not read its own configuration."""
    api.tokens = {"kp": "system:kube-proxy"}
    api.token = "admin"
    verbs = ["list", "watch"]
    api.rules = {
        "system:kube-proxy": [
            {"apiGroups": [""], "resources": ["services"], "verbs": verbs},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs},
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", *verbs]},
        ]
    }
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig", token="kp")
    report = report_of(migrate(None, "--dry-run", "-o", "json", f"--kubeconfig={kubeconfig}"))
    gaps = {gap["what"]: gap for gap in report["gaps"]}
    assert "servicecidrs" in gaps["ServiceCIDRs"]["remedy"]
    assert "--config" in gaps["configuration of the present kube-proxy"]["remedy"]
    assert report["counts"]["services"] > 10


def test_nobody_reads_on(sources: list[str]) -> None:
    """migrate | head"""
    command = [sys.executable, "-P", "-m", "proxy", "migrate", "--dry-run", *sources]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env={"PYTHONPATH": str(nodes.REPO)})
    os.close(writer)
    assert done.returncode in (0, 10, 11) and done.stderr == b""


def test_on_a_terminal(sources: list[str]) -> None:
    """Progress on standard error while it works, and colours; the report on standard output."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-P", "-m", "proxy", "migrate", "--dry-run", *sources]
    variables = {"PYTHONPATH": str(nodes.REPO), "TERM": "xterm-256color", "PATH": os.environ["PATH"]}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=variables)
    os.close(terminal)
    shown = b""
    end = time.monotonic() + 60
    assert process.stdout
    output = b""
    waiting = {controller, process.stdout.fileno()}
    while waiting and time.monotonic() < end:
        for descriptor in select.select(list(waiting), [], [], 1.0)[0]:
            try:
                data = os.read(descriptor, 65536)
            except OSError:  # the terminal's other end is closed
                data = b""
            if not data:
                waiting.discard(descriptor)
            elif descriptor == controller:
                shown += data
            else:
                output += data
    assert process.wait() in (0, 10, 11)
    os.close(controller)
    assert b"throw-away network namespace" in shown
    assert b"node0" in output and b"\x1b" not in output


def test_the_first_lines_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["migrate", "--help"], ["migrate", "collect", "--help"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert "kube-proxy-nft migrate" in text and "--manifests DIR" in text
        assert max(map(len, text.splitlines())) <= 120
