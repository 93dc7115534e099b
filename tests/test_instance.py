"""Only one agent in a network namespace, and a second one says who the first is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from proxy import instance
from proxy.errors import AlreadyRunning
from proxy.instance import Instance, check
from tests.netns import Namespace


@pytest.fixture
def name() -> str:
    return f"\0kube-proxy-nft-test-{os.getpid()}-{threading.get_ident()}"


@pytest.fixture
def first(name: str) -> Iterator[Instance]:
    held = Instance("node-1", name)
    yield held
    held.close()


def test_a_second_names_the_first(first: Instance, name: str) -> None:
    with pytest.raises(AlreadyRunning, match=rf"process {os.getpid()} \(.*node node-1\)"):
        Instance("node-1", name)


def test_it_can_be_asked_again_and_again(first: Instance, name: str) -> None:
    for _ in range(50):
        with pytest.raises(AlreadyRunning, match="node-1"):
            check(name)


def test_the_name_is_free_after_close(name: str) -> None:
    Instance("a", name).close()
    check(name)
    Instance("b", name).close()


def test_the_name_is_free_after_the_holder_was_killed(name: str) -> None:
    code = f"import time; from proxy.instance import Instance; i = Instance('x', {name!r}); print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline()
    with pytest.raises(AlreadyRunning, match=f"process {process.pid} "):
        check(name)
    process.kill()
    process.wait()
    check(name)
    process.stdout.close()


def test_one_that_hangs_is_named_all_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "ANSWER_SECONDS", 0.1)
    code = f"import time; from proxy.instance import Instance; i = Instance('x', {name!r}); print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline()
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(AlreadyRunning, match=f"process {process.pid} "):
            check(name)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_one_that_takes_no_more_callers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "ANSWER_SECONDS", 0.1)
    with socket.socket(socket.AF_UNIX) as holder, socket.socket(socket.AF_UNIX) as caller:
        holder.bind(name)
        holder.listen(0)
        caller.connect(name)
        with pytest.raises(AlreadyRunning, match="does not answer"):
            check(name)


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"pid": "x"}', b"null", b"\xff" * 9000])
def test_nonsense_instead_of_an_answer(said: bytes, name: str) -> None:
    with socket.socket(socket.AF_UNIX) as holder:
        holder.bind(name)
        holder.listen()

        def answer() -> None:
            caller, _ = holder.accept()
            with caller:
                caller.sendall(said)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(AlreadyRunning, match=f"process {os.getpid()} programs"):
            check(name)
        thread.join(10)


@pytest.mark.root
def test_who_is_not_root_cannot_keep_us_from_it(name: str) -> None:
    code = (
        "import os, socket, time\nos.setuid(65534)\ns = socket.socket(socket.AF_UNIX)\n"
        f"s.bind({name!r})\ns.listen()\nprint(1, flush=True)\ntime.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline()
    try:
        with capture_logs() as logs:
            Instance("node-1", name).close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert [(log["event"], log["uid"]) for log in logs] == [("instance_name_taken", 65534)]


@pytest.mark.root
def test_another_network_namespace_is_another_node(first: Instance, name: str) -> None:
    namespace = Namespace()
    try:
        code = f"from proxy.instance import Instance; Instance('y', {name!r}).close()"
        done = namespace.run(sys.executable, "-c", code)
    finally:
        namespace.close()
    assert done.returncode == 0, done.stderr
