"""A server of pages on an address of the configuration: healthzBindAddress, metricsBindAddress."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable, Collection
from typing import Final

from proxy.config_values import HostPort
from proxy.errors import ConfigError
from proxy.http_connections import Spot, Wrap
from proxy.http_message import Request, Response
from proxy.http_server import HttpServer, Site, explain, listen_at, spots
from rules.objects import Family


class PageServer:
    """Answers from a thread, from `start` to `stop`.

    name: begins its log events. field: the configuration's name of the address. bind: None, or port 0, or no host: no server.
    families: those that this kernel has. answer: called in the thread; must not block. hard_fail: bindAddressHardFail.
    wrap: for TLS (proxy.tls).
    """

    def __init__(
        self,
        name: str,
        field: str,
        bind: HostPort | None,
        families: Collection[Family],
        answer: Callable[[Request], Response],
        *,
        hard_fail: bool = False,
        wrap: Wrap | None = None,
    ) -> None:
        remedies = {code: f"{remedy}, or set another {field}" for code, remedy in _REMEDIES.items()}
        self._site = Site(name, lambda request, _spot: answer(request), remedies, wrap=wrap)
        self._field, self._hard_fail = field, hard_fail
        self._spots = spots(bind.host, bind.port, families) if bind and bind.host and bind.port else frozenset[Spot]()
        self._server = HttpServer(self._site)

    def start(self) -> None:
        """What cannot be had is tried again and again, and said once; with `hard_fail` it raises ConfigError."""
        if not self._spots:
            return
        ready = self._listening() if self._hard_fail else {}
        listeners = self._server.start()
        self._server.call(listeners.listen, self._spots, ready)

    def stop(self) -> None:
        self._server.stop()

    def _listening(self) -> dict[Spot, socket.socket]:
        ready: dict[Spot, socket.socket] = {}
        for spot in sorted(self._spots):
            try:
                ready[spot] = listen_at(spot)
            except OSError as error:
                for sock in ready.values():
                    sock.close()
                cause, remedy = explain(error, self._site)
                where = f"cannot listen on {ipaddress.ip_address(spot[0])}, port {spot[1]}: {cause}"
                remedy += "; with bindAddressHardFail: false it would be tried again and again"
                raise ConfigError(self._field, where, remedy) from None
        return ready


_REMEDIES: Final = {
    errno.EADDRINUSE: "stop it",
    errno.EADDRNOTAVAIL: "give this node the address",
    errno.EACCES: "give CAP_NET_BIND_SERVICE",
    errno.EAFNOSUPPORT: "switch it on",
}
