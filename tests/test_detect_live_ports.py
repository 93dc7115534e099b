"""What the detector makes of whatever listens on kube-proxy's metrics port."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.detect import proxy_ports
from proxy.detect.evidence import Evidence, Place, ServedMode, Unreadable
from proxy.detect.proxy_ports import gather, read_answer
from tests.dataplanes import inside, needs_root, recorded, run
from tests.netns import Namespace
from tests.proxy_port import Port

PLACE = Place("port", "http://127.0.0.1:10249/proxyMode")
OK = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"


def url(port: Port, address: str = "127.0.0.1") -> str:
    return f"http://{address}:{port.port}/proxyMode"


def modes(found: list[Evidence]) -> list[str]:
    return [e.mode for e in found if isinstance(e, ServedMode)]


@pytest.mark.parametrize("mode", ["iptables", "ipvs", "nftables"])
def test_the_mode_that_kube_proxy_says(mode: str) -> None:
    with Port.of_mode(mode, port=0) as port:
        found = gather([url(port)])
    assert found == [ServedMode(place=Place("port", url(port)), mode=mode)]
    assert port.requests[0].startswith(b"GET /proxyMode HTTP/1.0\r\nHost: 127.0.0.1:")


@needs_root
@pytest.mark.root
def test_the_default_addresses_and_one_process_on_both_of_them() -> None:
    node = Namespace()
    try:
        assert inside(node, gather) == []  # no loopback that is up
        run(node, "ip", "link", "set", "lo", "up")
        assert inside(node, gather) == []
        with inside(node, lambda: Port.of_mode("ipvs", "::1")):
            (found,) = inside(node, gather)
            assert found == ServedMode(place=Place("port", "http://[::1]:10249/proxyMode"), mode="ipvs")
            with inside(node, lambda: Port.of_mode("ipvs")):
                assert modes(inside(node, gather)) == ["ipvs"]
            with inside(node, lambda: Port.of_mode("iptables")):
                assert modes(inside(node, gather)) == ["iptables", "ipvs"]
    finally:
        node.close()


def test_nobody_listens() -> None:
    with Port.of_mode("ipvs", port=0) as port:
        pass
    assert gather([url(port)]) == []


def test_our_own_agent_is_not_taken_for_kube_proxy() -> None:
    with Port.of_mode("nftables", port=0, headers="Server: kube-proxy-nft/0.1.0\r\n") as port:
        (found,) = gather([url(port)])
    assert isinstance(found, Unreadable) and found.harmless
    assert found.cause == "kube-proxy-nft answers here"


def test_one_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_ports, "SECONDS", 0.05)
    with Port(b"", port=0, hangs=True) as port:
        (found,) = gather([url(port)])
    assert isinstance(found, Unreadable) and not found.harmless
    assert "no answer within" in found.cause


def test_one_that_goes_on_and_on() -> None:
    """Each piece comes in time; all of them together do not."""
    seconds: Iterator[float] = itertools.chain([0.0, 0.0], itertools.repeat(proxy_ports.SECONDS))
    with Port(OK.encode(), port=0, hangs=True) as port:
        (found,) = gather([url(port)], clock=lambda: next(seconds))
    assert isinstance(found, Unreadable) and "no answer within" in found.cause
    with Port(OK.encode() + b"\r\n" + b"iptables " * 100_000, port=0) as port:
        (found,) = gather([url(port)])
    assert isinstance(found, Unreadable) and found.harmless


def test_one_that_hangs_up() -> None:
    with Port(b"", port=0) as port:
        (found,) = gather([url(port)])
    assert isinstance(found, Unreadable) and found.harmless


@pytest.mark.parametrize(
    "wrong",
    [
        "https://127.0.0.1:10249/proxyMode",
        "127.0.0.1:10249",
        "http://127.0.0.1:70000/",
        "http://[::1/",
        "http://some-node:10249/proxyMode",
        "http://127.0.0.1:1/a b",
        "http://127.0.0.1:1/a\r\nX: y",
        "",
    ],
)
def test_what_is_no_url_of_a_port(wrong: str) -> None:
    (found,) = gather([wrong])
    assert isinstance(found, Unreadable) and not found.harmless and found.remedy


@pytest.mark.parametrize(
    ("answer", "mode"),
    [
        (OK + "\r\nipvs", "ipvs"),
        (OK + "Content-Length: 8\r\n\r\niptables\n", "iptables"),
        ("HTTP/1.0 200 OK\r\n\r\nkernelspace", "kernelspace"),
        ("HTTP/1.1 200\r\n\r\nnftables", "nftables"),
        (OK + "\r\n", None),
        (OK + "\r\nok", None),
        (OK + "\r\n<html>ipvs</html>", None),
        (OK + "Transfer-Encoding: chunked\r\n\r\n4\r\nipvs\r\n0\r\n\r\n", None),
        ("HTTP/1.1 404 Not Found\r\n\r\nipvs", None),
        ("HTTP/1.1 401 Unauthorized\r\n\r\n", None),
        ("SSH-2.0-OpenSSH_9.2p1\r\n", None),
        ("", None),
    ],
)
def test_what_an_answer_says(answer: str, mode: str | None) -> None:
    found = read_answer(answer.encode(), PLACE)
    if mode is None:
        assert isinstance(found, Unreadable) and found.harmless
    else:
        assert found == ServedMode(place=PLACE, mode=mode)


@given(st.one_of(st.binary(), st.binary().map(lambda body: f"{OK}\r\n".encode() + body)))
def test_whatever_the_answer_is(answer: bytes) -> None:
    found = read_answer(answer, PLACE)
    assert isinstance(found, Unreadable) or found.mode in proxy_ports.MODES  # type: ignore[union-attr]


def test_recorded_modes_are_modes() -> None:
    assert all(recorded(mode, "proxyMode.txt") == mode for mode in ("iptables", "ipvs", "nftables"))
