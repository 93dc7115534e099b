"""What is served on metricsBindAddress."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from integration.processes import free_port
from proxy import metrics
from proxy.config_values import HostPort
from proxy.detect.evidence import Place
from proxy.detect.proxy_ports import gather, read_answer
from proxy.http_message import Request, Response
from proxy.metrics import Family, answer, pages, registry
from proxy.page_server import PageServer
from rules.objects import Family as IpFamily

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
"""The Accept of Prometheus 3."""


@pytest.fixture
def made() -> CollectorRegistry:
    return registry("1.2.3")


def get(path: str, made: CollectorRegistry, accept: str = "", method: str = "GET") -> Response:
    return answer(Request(method, path), made, accept)


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in parse_text(text) for s in f.samples}


def test_the_build() -> None:
    found = samples(get("/metrics", registry("1.2.3")).body.decode())
    ((name, labels),) = [key for key in found if not key[0].startswith("process_")]
    assert name == "kube_proxy_nft_build_info" and ("version", "1.2.3") in labels


def test_the_process_default_registry_is_left_alone(made: CollectorRegistry) -> None:
    assert "kube_proxy_nft_build_info" not in {metric.name for metric in REGISTRY.collect()}
    assert b"python_" not in get("/metrics", made).body.replace(b'python="', b"")


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0", True),
        ("application/openmetrics-text; version=abc", True),  # a version that there is not
        ("application/openmetrics-text; version=9.9", True),
        ("application/openmetrics-text-no", False),
        (",;=,", False),
    ],
)
def test_the_format_is_what_is_accepted(accept: str, openmetrics: bool, made: CollectorRegistry) -> None:
    said = get("/metrics", made, accept)
    assert said.status == 200
    if openmetrics:
        assert said.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
        assert list(parse_openmetrics(said.body.decode()))  # type: ignore[no-untyped-call]
    else:
        assert said.headers["Content-Type"].startswith("text/plain; version=0.0.4; charset=utf-8")
        assert samples(said.body.decode())


def test_a_family_is_replaced_as_a_whole(made: CollectorRegistry) -> None:
    family = Family("kube_proxy_nft_deprecation", "About it.", ("mode", "check"))
    made.register(family)
    assert b"kube_proxy_nft_deprecation{" not in get("/metrics", made).body
    family.show([{"check": "a", "mode": "ipvs"}, {"mode": "ipvs", "check": "a"}, {"check": "b", "mode": 'x"\n\\'}])
    found = samples(get("/metrics", made).body.decode())
    assert found[("kube_proxy_nft_deprecation", (("check", "a"), ("mode", "ipvs")))] == 1
    assert found[("kube_proxy_nft_deprecation", (("check", "b"), ("mode", 'x"\n\\')))] == 1
    assert len([name for name, _ in found if name.startswith("kube_proxy_nft_")]) == 3
    family.show([])
    assert b"kube_proxy_nft_deprecation{" not in get("/metrics", made).body


def test_two_families_of_one_name_are_a_mistake(made: CollectorRegistry) -> None:
    made.register(Family("kube_proxy_nft_x", "About it.", ()))
    with pytest.raises(ValueError, match="Duplicated"):
        made.register(Family("kube_proxy_nft_x", "About it.", ()))


def test_a_scrape_never_sees_a_mixture(made: CollectorRegistry) -> None:
    family = Family("kube_proxy_nft_x", "About it.", ("set", "n"))
    made.register(family)
    sets = [[{"set": name, "n": str(n)} for n in range(20)] for name in "ab"]
    family.show(sets[0])
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            for one in sets:
                family.show(one)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(50):
            labels = [
                dict(key[1]) for key in samples(get("/metrics", made).body.decode()) if key[0] == "kube_proxy_nft_x"
            ]
            assert len(labels) == 20 and len({one["set"] for one in labels}) == 1
    finally:
        stop.set()
        thread.join()


def test_proxy_mode(made: CollectorRegistry) -> None:
    """As kube-proxy, to the byte; but who asks can tell us from it."""
    said = get("/proxyMode", made)
    assert (said.status, said.body) == (200, b"nftables")
    assert said.headers["Content-Type"] == "text/plain; charset=utf-8" and said.headers["Server"] == "kube-proxy-nft"


def test_pages_of_others(made: CollectorRegistry) -> None:
    others = {"/other": lambda request: Response(HTTPStatus.OK, request.query.encode())}
    assert pages(made, others)(Request("GET", "/other", "x=1")).body == b"x=1"
    assert pages(made, others)(Request("POST", "/other")).status == 405


@pytest.mark.parametrize("path", ["/", "/metrics/", "/healthz", "/proxymode", "//metrics"])
def test_other_pages(path: str, made: CollectorRegistry) -> None:
    assert get(path, made).status == 404


@pytest.mark.parametrize("path", ["/metrics", "/proxyMode"])
def test_nothing_can_be_written(path: str, made: CollectorRegistry) -> None:
    assert get(path, made, method="POST").status == 405
    assert get(path, made, method="HEAD").status == 200


@pytest.fixture
def port(made: CollectorRegistry) -> Iterator[int]:
    port = free_port()
    server = PageServer("metrics", "metricsBindAddress", HostPort("127.0.0.1", port), [IpFamily.IPV4], pages(made))
    server.start()
    deadline = time.monotonic() + 10
    while True:  # it listens from another thread
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
    yield port
    server.stop()


def ask(port: int, path: str) -> tuple[bytes, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Accept": PROMETHEUS})
    said = connection.getresponse()
    return said.read(), said.headers["Content-Type"]


def test_over_http(port: int) -> None:
    body, kind = ask(port, "/metrics")
    assert b"kube_proxy_nft_build_info" in body and "charset=utf-8" in kind
    assert ask(port, "/proxyMode")[0] == b"nftables"


def test_the_detector_does_not_take_us_for_a_kube_proxy(port: int) -> None:
    url = f"http://127.0.0.1:{port}/proxyMode"
    (item,) = gather([url])
    assert getattr(item, "harmless", False)
    # Without the header it would.
    without = read_answer(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nnftables", Place("port", url))
    assert getattr(without, "mode", "") == metrics.MODE
