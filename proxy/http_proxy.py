"""Which HTTP proxy stands before a server, as the environment says. Pure.

As Go's programs read it (golang.org/x/net/http/httpproxy), so that what works for kubectl and kube-proxy works here:
NO_PROXY may hold networks, which Python's own reading of it does not know.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit


def proxy_for(url: str, environment: Mapping[str, str]) -> str:
    """The proxy's URL, '' for none: HTTPS_PROXY or HTTP_PROXY by the URL's scheme, unless NO_PROXY names the host."""
    parts = urlsplit(url)
    proxy = _variable(environment, f"{parts.scheme}_proxy")
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if not proxy or _is_local(host) or _is_excepted(host, port, _variable(environment, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.upper()) or environment.get(name) or ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(text.strip("[]"))
    return None


def _is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _is_excepted(host: str, port: int, no_proxy: str) -> bool:
    address = _address(host)
    for entry in (entry.strip().lower() for entry in no_proxy.split(",")):
        if entry == "*":
            return True
        if "/" in entry:
            with suppress(ValueError):
                if address is not None and address in ipaddress.ip_network(entry, strict=False):
                    return True
            continue
        name = entry
        if _address(entry) is None:
            head, colon, number = entry.rpartition(":")
            if colon and number.isascii() and number.isdigit():
                if number.lstrip("0") != str(port):
                    continue
                name = head
        if not name:
            continue
        if (excepted := _address(name)) is not None:
            if excepted == address:
                return True
        elif name.startswith((".", "*.")):  # the domain's hosts, not the domain itself
            if host.endswith(name.removeprefix("*")):
                return True
        elif host == name or host.endswith(f".{name}"):
            return True
    return False
