"""What starts a real API server, tried with programs that only take its flags; and what holds the stand-in by hand."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration import apiserver_real
from integration.apiserver import certificates
from integration.apiserver_real import RealApi, assets, can_stream
from integration.etcd import Etcd
from integration.processes import free_port
from integration.rest import Rest
from proxy.errors import UserError
from tests.apis import service
from tests.fake_kube_apiserver import install

REPO = Path(__file__).parents[1]

needs_openssl = pytest.mark.skipif(not certificates.available(), reason="openssl makes the certificates")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return install(tmp_path / "bin")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def real(programs: Path, directory: Path) -> Iterator[RealApi]:
    server = RealApi(programs, directory)
    server.start()
    yield server
    server.stop()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@needs_openssl
def test_from_start_to_stop(real: RealApi, tmp_path: Path) -> None:
    assert real.streams
    assert real.rest("admin").put(service("web", "10.96.0.7"))["spec"]["clusterIP"] == "10.96.0.7"
    path = "/api/v1/services?resourceVersion=0"
    assert [real.rest(user).get(path).status for user in ("admin", "system:kube-proxy", "nobody", "")] == [
        200, 200, 403, 403,
    ]  # fmt: skip
    kubeconfig = Path(real.kubeconfig(tmp_path / "kubeconfig", "nobody")).read_text()
    assert real.url in kubeconfig
    assert "token-of-nobody" in kubeconfig
    port = real.port
    real.restart()
    assert real.port == port
    names = [item["metadata"]["name"] for item in real.rest().get(path).json()["items"]]
    assert names == ["kubernetes", "web"]
    real.compact()
    with real.rest().watch("/api/v1/services?watch=1&resourceVersion=2") as events:
        assert next(events)["object"]["code"] == 410
    real.stop()
    assert not listens(port)


@needs_openssl
def test_a_server_that_fails_says_why(programs: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (programs / "kube-apiserver").write_text(
        "#!/bin/sh\necho starting; echo 'Error: unknown flag: --nonsense' >&2; exit 3\n"
    )
    server = RealApi(programs, directory)
    with pytest.raises(UserError) as caught:
        server.start()
    assert "kube-apiserver: it ended with exit code 3" in str(caught.value)
    assert "starting\nError: unknown flag: --nonsense" in str(caught.value)
    etcd = int(re.findall(r":(\d+)$", server._etcd.url)[0])
    assert not listens(etcd)
    (programs / "kube-apiserver").write_text("#!/bin/sh\necho thinking; exec sleep 60\n")
    monkeypatch.setattr(apiserver_real, "START_PATIENCE", 0.5)
    with pytest.raises(UserError, match=r"it was not ready within 0\.5 s(.|\n)*thinking"):
        server.start()


def test_the_folder_that_the_variable_names(programs: Path, tmp_path: Path) -> None:
    assert assets({}) is None
    assert assets({"KUBEBUILDER_ASSETS": ""}) is None
    assert assets({"KUBEBUILDER_ASSETS": str(programs)}) == programs
    (programs / "etcd").unlink()
    for folder in (programs, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=f"KUBEBUILDER_ASSETS: {folder} has no program etcd"):
            assets({"KUBEBUILDER_ASSETS": str(folder)})


@pytest.mark.parametrize(
    ("version", "expected"),
    [((3, 4, 23), False), ((3, 4, 31), True), ((3, 5, 0), False), ((3, 5, 13), True), ((3, 6, 0), True)],
)
def test_streaming_lists_need_a_new_etcd(version: tuple[int, ...], expected: bool) -> None:
    assert can_stream(version) is expected


def test_an_etcd(directory: Path) -> None:
    program = shutil.which("etcd", path=f"{os.environ.get('KUBEBUILDER_ASSETS', '')}:{os.environ['PATH']}")
    if not program:
        pytest.skip("etcd is not installed")
    etcd = Etcd(Path(program), directory)
    etcd.start()
    try:
        assert etcd.version >= (3, 4)
        for value in ("YQ==", "Yg==", "Yw=="):
            etcd._ask("/v3/kv/put", {"key": "Zm9v", "value": value})
        etcd.compact()
        etcd.compact()  # nothing happened since
        with pytest.raises(OSError, match="has been compacted"):
            etcd._ask("/v3/kv/range", {"key": "Zm9v", "revision": "2"})
    finally:
        etcd.stop()


# The suite, with and without the variable.


def pytest_run(*arguments: str, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "KUBEBUILDER_ASSETS"} | variables
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=REPO, env=environment, timeout=120)
    return done.stdout


ONE = (
    "tests/test_standin_lists.py",
    "tests/test_standin_watches.py",
    "-k",
    "test_a_list_of_the_newest_state or test_a_watch_shows",
)


@needs_openssl
def test_the_same_tests_run_on_both(programs: Path) -> None:
    assert "4 passed" in pytest_run(*ONE, KUBEBUILDER_ASSETS=str(programs))


def test_without_a_real_server_they_are_skipped_visibly() -> None:
    said = pytest_run(*ONE)
    assert "2 passed, 2 skipped" in said
    assert "KUBEBUILDER_ASSETS names no folder with etcd and kube-apiserver" in said


def test_a_real_server_that_does_not_start_fails_the_tests(programs: Path) -> None:
    (programs / "kube-apiserver").write_text("#!/bin/sh\necho 'no such luck'; exit 1\n")
    said = pytest_run(*ONE, KUBEBUILDER_ASSETS=str(programs))
    assert re.search(r"2 passed, .*2 errors", said)
    assert "no such luck" in said


# By hand.


def by_hand(*arguments: str, text_in: str | None = None) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "integration.apiserver", "--port", str(free_port()), *arguments]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv, stdin=pipe if text_in is not None else subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, cwd=REPO
    )
    if text_in is not None and process.stdin:
        process.stdin.write(text_in)
        process.stdin.flush()
    return process


def test_by_hand(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("kind: Service\nmetadata: {name: more}\nspec: {}\n")
    process = by_hand("--objects", "examples/manifests", "--kubeconfig", str(tmp_path / "k"), "--script", "-",
                      "--do", "fail 503 verb=get", text_in=f"put {tmp_path}/more.yaml\n")  # fmt: skip
    assert process.stdout
    try:
        url = re.search(r"http://\S+", process.stdout.readline())
        assert url
        assert url[0] in (tmp_path / "k").read_text()
        rest = Rest(url[0])
        path = "/api/v1/namespaces/default/services/more"
        deadline = time.monotonic() + 20
        while rest.get(path).status != 503:  # it does as it is told once it has said where it is
            assert time.monotonic() < deadline
            time.sleep(0.01)
        while rest.get(path).status != 200:  # standard input is read meanwhile
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(rest.get("/api/v1/services").json()["items"]) > 1
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--do", "explode"], "explode: there is no 'explode'; there are: allow, "),
        (["--do", "fail"], "fail: "),
        (["--do", "at soon heal"], "at soon heal: could not convert"),
        (["--do", "put nowhere.yaml"], "put nowhere.yaml: "),
        (["--objects", "nowhere.yaml"], "No such file"),
        (["--script", "nowhere"], "No such file"),
    ],
)
def test_by_hand_with_mistakes(arguments: list[str], said: str) -> None:
    _, err = by_hand(*arguments).communicate(timeout=20)
    assert said in err
    assert "Traceback" not in err
