"""proxy.http_proxy: the rules of Go's httpproxy, which kubectl and kube-proxy follow."""

from __future__ import annotations

import pytest

from proxy.http_proxy import proxy_for

HTTPS = "https://api.cluster.example:6443"


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        (HTTPS, {}, ""),
        (HTTPS, {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        (HTTPS, {"https_proxy": "http://p:3128"}, "http://p:3128"),
        (HTTPS, {"HTTPS_PROXY": "http://upper", "https_proxy": "http://lower"}, "http://upper"),
        (HTTPS, {"HTTPS_PROXY": "", "https_proxy": "http://lower"}, "http://lower"),
        (HTTPS, {"HTTP_PROXY": "http://p:3128", "ALL_PROXY": "http://p"}, ""),
        (HTTPS, {"HTTPS_PROXY": "p:3128"}, "http://p:3128"),
        (HTTPS, {"HTTPS_PROXY": "socks5://p:1080"}, "socks5://p:1080"),
        ("http://api", {"HTTP_PROXY": "http://p:3128"}, "http://p:3128"),
        ("http://localhost:8080", {"HTTP_PROXY": "http://p:3128"}, ""),
        ("http://127.3.2.1:8080", {"HTTP_PROXY": "http://p:3128"}, ""),
        ("http://[::1]:8080", {"HTTP_PROXY": "http://p:3128"}, ""),
    ],
)
def test_which_proxy(url: str, environment: dict[str, str], proxy: str) -> None:
    assert proxy_for(url, environment) == proxy


@pytest.mark.parametrize(
    ("url", "no_proxy", "excepted"),
    [
        (HTTPS, "*", True),
        (HTTPS, "api.cluster.example", True),
        (HTTPS, "API.cluster.EXAMPLE", True),
        (HTTPS, "example", True),
        (HTTPS, "cluster.example", True),
        (HTTPS, ".cluster.example", True),
        (HTTPS, "*.example", True),
        (HTTPS, ".api.cluster.example", False),
        (HTTPS, "luster.example", False),
        (HTTPS, "other.example, ,cluster.example ", True),
        (HTTPS, "api.cluster.example:6443", True),
        (HTTPS, "api.cluster.example:443", False),
        ("https://api.cluster.example", "api.cluster.example:443", True),
        (HTTPS, "10.0.0.0/8", False),
        (HTTPS, "", False),
        (HTTPS, ",", False),
        ("https://10.1.2.3:6443", "10.1.2.3", True),
        ("https://10.1.2.3:6443", "10.1.2.3:6443", True),
        ("https://10.1.2.3:6443", "10.1.2.3:443", False),
        ("https://10.1.2.3:6443", "10.0.0.0/8", True),
        ("https://10.1.2.3:6443", "10.1.2.99/8", True),
        ("https://10.1.2.3:6443", "192.168.0.0/16,fd00::/8", False),
        ("https://10.1.2.3:6443", "nonsense/8", False),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://[fd00::1]:6443", "fd00:0::1", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", True),
        ("https://[fd00::1]:6443", "[fd00::1]:443", False),
    ],
)
def test_exceptions(url: str, no_proxy: str, excepted: bool) -> None:
    proxies = {"HTTPS_PROXY": "http://p:3128", "HTTP_PROXY": "http://p:3128"}
    assert (proxy_for(url, proxies | {"NO_PROXY": no_proxy}) == "") == excepted
    assert (proxy_for(url, proxies | {"no_proxy": no_proxy}) == "") == excepted
