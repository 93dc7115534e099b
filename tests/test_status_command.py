"""`kube-proxy-nft status`: what it prints of an agent, and what it says when there is none."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, get_args

import pytest
from msgspec import structs

from integration.apiserver.certificates import Authority
from integration.processes import free_port
from proxy import metrics
from proxy.command_line import parse
from proxy.config_values import HostPort
from proxy.errors import SourceError, UsageError
from proxy.events import Delete
from proxy.http_message import Request, Response, text
from proxy.page_server import PageServer
from proxy.status import command, pages
from proxy.status.report import History, Protection, Slot
from proxy.status.text import text as shown
from proxy.tls import Certificates, wrapping
from proxy.tls_files import TlsFiles
from rules.objects import Family
from tests.deployed import wait_until
from tests.netns import Namespace
from tests.objects import endpoint_slice, service
from tests.status_world import StatusWorld

Page = Callable[[Request], Response]
OBJECTS = (service("web", "10.96.0.1"), endpoint_slice("web", "10.244.0.1", "10.244.0.2"))


@pytest.fixture
def world() -> StatusWorld:
    made = StatusWorld()
    made.list(*OBJECTS)
    return made


def ours(world: StatusWorld | None) -> Page:
    """As the metrics port answers."""
    return metrics.pages(metrics.registry("1.2.3"), pages.pages(lambda: world.view if world else None))


@contextlib.contextmanager
def served(answer: Page, **options: Any) -> Iterator[str]:
    port = free_port()
    server = PageServer("metrics", "metricsBindAddress", HostPort("127.0.0.1", port), [Family.IPV4], answer, **options)
    server.start()
    try:
        wait_until(lambda: _listens(port), "it listens")
        yield f"127.0.0.1:{port}"
    finally:
        server.stop()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def run(*arguments: str) -> int:
    return command.run(parse(["status", *arguments]))


def test_a_healthy_agent(world: StatusWorld, capsys: pytest.CaptureFixture[str]) -> None:
    with served(ours(world)) as at:
        assert run("--url", f"http://{at}", "--exit-code") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "node-1: healthy"
    assert "  services    1, with 2 endpoints in 1 EndpointSlice" in lines
    assert "  tables      IPv4: 1 service port, 8 elements" in [
        re.sub(r"\d+ elements", "8 elements", line) for line in lines
    ]
    assert "  others      can change our tables, which costs connections until it is undone" in lines
    assert "  left out    nothing" in lines and "  repairs     none: nobody changed our tables" in lines
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("protection", [one for one in get_args(Protection) if one])
def test_who_can_change_the_tables_is_one_row(world: StatusWorld, protection: Protection) -> None:
    said = shown(structs.replace(world.view.summary(), protection=protection)).splitlines()
    [row] = [line for line in said if line.startswith("  others ")]
    assert ("standby" in row) == ("standby" in protection) and len(row) <= 120
    assert "  others " not in shown(structs.replace(world.view.summary(), protection=""))


def test_as_json(world: StatusWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world.put(service("bad", "10.96.0.2", ports=[{"port": 70000}]))
    with served(ours(world)) as at:
        assert run("--url", f"http://{at}/", "-o", "json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == "kube-proxy-nft/status/v1" and said["health"]["verdict"] == "attention"
    assert said["rejected"] == 1 and said["rejected_objects"][0]["name"] == "bad"


def test_what_needs_a_look_is_said_and_is_no_failure(world: StatusWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world.put(*(service(f"bad-{i:02}", "10.96.0.2", ports=[{"port": 70000}]) for i in range(12)))
    with served(ours(world)) as at:
        assert run("--url", f"http://{at}", "--exit-code") == 0
    out = capsys.readouterr().out
    assert "healthy, but somebody should look" in out and "Service default/bad-00: spec.ports[0].port: 70000" in out
    assert "bad-10" not in out and "and more" in out


def test_an_agent_that_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    with served(ours(StatusWorld())) as at:
        assert run("--url", f"http://{at}") == 0
        assert run("--url", f"http://{at}", "--exit-code") == 1
    assert "node-1: not healthy\n  - no rules are programmed yet: the first complete lists" in capsys.readouterr().out


def test_hostile_names_reach_no_terminal(world: StatusWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world.put(service("\x1b[2J\nroot", "10.96.0.2", ports=[{"port": 70000}], namespace="\u202ea\x07"))
    with served(ours(world)) as at:
        assert run("--url", f"http://{at}") == 0
    out = capsys.readouterr().out
    assert "\\x1b[2J\\nroot" in out and not set(out) & {"\x1b", "\x07", "\u202e"}


def test_the_last_hour(world: StatusWorld) -> None:
    import msgspec

    summary = msgspec.structs.replace(
        world.view.summary(),
        history=History(
            step=10, slots=(Slot(0.0, 0, 1, 900.0, 1638.4, 1), Slot(10.0, 5, 2, 0.5, 0.8), Slot(20.0, 3, 1, 2.0, 3.2))
        ),
    )
    assert "8 changes of service ports in 3 commits; 1.00 ms on average, the slowest within 3.2 ms" in shown(summary)


def failure(*arguments: str) -> str:
    with pytest.raises(SourceError) as caught:
        run(*arguments)
    return str(caught.value)


def test_nobody_answers() -> None:
    said = failure("--url", f"http://127.0.0.1:{free_port()}")
    assert "no answer: Connection refused" in said and "--url" in said


def test_kube_proxy_answers() -> None:
    def kube_proxy(request: Request) -> Response:
        if request.path == "/proxyMode":
            return Response(HTTPStatus.OK, b"ipvs", {"Content-Type": "text/plain; charset=utf-8"})
        return text(HTTPStatus.NOT_FOUND)

    with served(kube_proxy) as at:
        assert "kube-proxy answers there, in mode ipvs" in failure("--url", f"http://{at}")


@pytest.mark.parametrize("body", [b"", b"hello", b"{}", b"\xff" * 100])
def test_somebody_else_answers(body: bytes) -> None:
    with served(lambda _request: Response(HTTPStatus.OK, body)) as at:
        assert "it is not kube-proxy-nft (HTTP status 200" in failure("--url", f"http://{at}")


def test_an_answer_that_cannot_be_read() -> None:
    headers = {"Server": "kube-proxy-nft"}
    with served(lambda _request: Response(HTTPStatus.OK, b'{"node": 1}', headers)) as at:
        assert "the answer cannot be read" in failure("--url", f"http://{at}")


def test_a_page_that_is_switched_off() -> None:
    with served(metrics.pages(metrics.registry("1.2.3"))) as at:
        assert "status page is switched off" in failure("--url", f"http://{at}")


def test_an_agent_that_is_starting() -> None:
    with served(ours(None)) as at:
        assert "the agent is starting" in failure("--url", f"http://{at}")


def test_no_proxy_is_used(
    world: StatusWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with served(ours(world)) as at:
        assert run("--url", f"http://{at}") == 0


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:10249", "ftp://a", "http://", "http://a:b", "http://a:0", "http://a?b", "http://u:p@a", "http://[::"],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(UsageError):
        run("--url", url)


def test_tls(world: StatusWorld, authority: Authority, stranger: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    certificate, key = authority.server()
    mine = authority.client("operator")
    wrap = wrapping(Certificates(TlsFiles(certificate, key, authority.ca)))
    with served(ours(world), wrap=wrap) as at:
        url = ("--url", f"https://{at}")
        trust, identity = ("--ca-file", authority.ca), ("--cert-file", mine[0], "--key-file", mine[1])
        assert run(*url, *trust, *identity) == 0
        assert "node-1: healthy" in capsys.readouterr().out
        assert "no answer" in failure(*url, *trust)  # without a certificate of ours
        assert "certificate" in failure(*url, "--ca-file", stranger.ca, *identity)
        assert "certificate" in failure(*url, *trust, *identity, "--server-name", "elsewhere.test")
        assert "TLS" in failure("--url", f"http://{at}")


def test_files_that_are_no_certificates(authority: Authority, tmp_path: Any) -> None:
    (tmp_path / "empty").write_text("")
    url = ("--url", "https://127.0.0.1:1")
    for more in (["--ca-file", "/nowhere"], ["--ca-file", str(tmp_path / "empty")], ["--cert-file", "/nowhere"]):
        with pytest.raises(UsageError, match="cannot be used"):
            run(*url, *more)
    with pytest.raises(UsageError, match="--cert-file"):
        run(*url, "--key-file", authority.ca)
    with pytest.raises(UsageError, match="https"):
        run("--ca-file", authority.ca)


@pytest.mark.root
def test_an_agent_with_the_kernel_of_a_namespace(namespace: Namespace) -> None:
    """Its port is that of the namespace, and so is the command."""
    assert namespace.run("ip", "link", "set", "lo", "up").returncode == 0
    world = StatusWorld(namespace.kernel)
    world.list(*OBJECTS)
    server = PageServer("metrics", "metricsBindAddress", HostPort("127.0.0.1", 10249), [Family.IPV4], ours(world))
    namespace.inside(server.start)
    try:
        import sys

        def said() -> str:
            return namespace.run(sys.executable, "-m", "proxy", "status").stdout

        wait_until(lambda: "node-1: healthy" in said(), "it answers")
        world.handle([Delete("EndpointSlice", "default", "web-1")])
        assert "1, with 0 endpoints in 0 EndpointSlices" in said()
    finally:
        server.stop()
