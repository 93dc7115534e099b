"""Which mode a running kube-proxy says it is in: GET /proxyMode on its metrics port, 10249 of the loopback by default.

Whatever listens there may be anything: it gets little time and little room.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import time
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

from proxy.detect.evidence import Evidence, Place, ServedMode, Unreadable

URLS: Final = ("http://127.0.0.1:10249/proxyMode", "http://[::1]:10249/proxyMode")
"""Where kube-proxy serves it if `metricsBindAddress` says nothing else."""

OURS: Final = "kube-proxy-nft"
"""Our own agent's `Server` header begins so. (kube-proxy sends none.)"""
OURS_ANSWERS: Final = f"{OURS} answers here"

SECONDS: Final = 2.0
"""For all of one answer."""
LARGEST_ANSWER: Final = 16384
MODES: Final = ("iptables", "ipvs", "nftables", "kernelspace", "userspace")

_NOBODY: Final = (
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EPIPE,
    errno.EADDRNOTAVAIL,  # this node has no such address
    errno.ENETUNREACH,
    errno.EAFNOSUPPORT,  # no IPv6
)
_REMEDY: Final = "see which process listens there (ss -ltnp), and what its log says"

Clock = Callable[[], float]


def gather(urls: Iterable[str] = URLS, clock: Clock = time.monotonic) -> list[Evidence]:
    """Nobody who listens is no evidence. One that listens on several of these addresses is told once."""
    found: list[Evidence] = []
    for url in dict.fromkeys(urls):
        place = Place("port", url)
        try:
            evidence = read_answer(_get(url, clock), place)
        except TimeoutError:
            cause = f"no answer within {SECONDS:g} s"
            evidence = Unreadable(place=place, cause=cause, remedy=_REMEDY)
        except OSError as error:
            if error.errno in _NOBODY:
                continue
            evidence = Unreadable(place=place, cause=error.strerror or str(error), remedy=_REMEDY)
        except ValueError as error:
            evidence = Unreadable(
                place=place, cause=str(error), remedy="give a URL as http://127.0.0.1:10249/proxyMode"
            )
        if not any(_same(evidence, other) for other in found):
            found.append(evidence)
    return found


def _same(one: Evidence, other: Evidence) -> bool:
    """They are of one process, as far as can be told."""
    if isinstance(one, ServedMode) and isinstance(other, ServedMode):
        return one.mode == other.mode
    return isinstance(one, Unreadable) and isinstance(other, Unreadable) and one.cause == other.cause


def _get(url: str, clock: Clock) -> bytes:
    """The answer's beginning, headers and all. Raises OSError; ValueError for a URL that cannot be asked."""
    parts = urlsplit(url)
    path, host = parts.path.rstrip("/") or "/proxyMode", parts.hostname or ""
    if parts.scheme != "http" or not re.fullmatch(r"[!-~]+", path + parts.netloc):
        raise ValueError("not an http URL")
    if host != "localhost":
        ipaddress.ip_address(host)  # no name server is waited for
    end = clock() + SECONDS
    answer = b""
    with socket.create_connection((host, parts.port or 80), timeout=SECONDS) as sock:
        # HTTP/1.0: the answer comes in one piece, and ends with the connection.
        sock.sendall(f"GET {path} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept: text/plain\r\n\r\n".encode())
        while len(answer) < LARGEST_ANSWER:
            left = end - clock()
            if left <= 0:
                raise TimeoutError
            sock.settimeout(left)
            piece = sock.recv(LARGEST_ANSWER - len(answer))
            if not piece:
                break
            answer += piece
    return answer


def read_answer(answer: bytes, place: Place) -> Evidence:
    """What an HTTP answer to /proxyMode says. Pure."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *headers = head.decode(errors="replace").split("\r\n")
    matched = re.fullmatch(r"HTTP/1\.[01] (\d{3})( .*)?", status)
    if not matched:
        return _not_it(place, "it does not speak HTTP")
    if any(re.match(rf"server:\s*{OURS}", header, re.IGNORECASE) for header in headers):
        return _not_it(place, OURS_ANSWERS)
    if matched[1] != "200":
        return _not_it(place, f"it answers {matched[1]}, as no kube-proxy does")
    mode = body.decode(errors="replace").strip()
    if mode not in MODES:
        return _not_it(place, "it answers with something that is no mode")
    return ServedMode(place=place, mode=mode)


def _not_it(place: Place, cause: str) -> Unreadable:
    """Another program than kube-proxy: nothing is hidden from us."""
    return Unreadable(place=place, cause=cause, harmless=True)
