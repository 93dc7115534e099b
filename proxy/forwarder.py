"""NodePorts on this node's loopback addresses (KEP-6032): one thread listens, and forwards TCP connections.

Packets to loopback do not leave the node, so nftables cannot lead them elsewhere. UDP and SCTP are not forwarded: as
nothing listens, the kernel refuses them.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import resource
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final

import structlog

from proxy.forwarder_connection import Connections
from proxy.forwarder_policy import HOSTS, Picker, led_to, loopback_families
from proxy.listening import listening
from proxy.port_holders import holders
from rules.elements import ServicePort, describe_key, family_of, is_node_port
from rules.objects import PROTOCOLS, Family

LOG = structlog.get_logger()

RETRY_SECONDS: Final = 3.0
"""Between two tries to listen where it was not possible."""
BACKLOG: Final = 1024
ACCEPT_AT_ONCE: Final = 64
PAUSE_SECONDS: Final = 0.1
"""How long nobody is let in at a NodePort when there are too many connections, or the kernel has no room for more."""
FULL_TOLD_SECONDS: Final = 60.0
"""Between two warnings of that."""
MAX_FILES: Final = 1 << 17
"""For listeners and connections, if the process may open so many. A connection takes two."""
RESERVED_FILES: Final = 512
"""Left to the rest of the process: three HTTP servers may have 128 connections each."""

_TCP: Final = PROTOCOLS["TCP"]
_REMEDY: Final = "it is tried again every few seconds"
_CAUSES: Final = {
    errno.EADDRNOTAVAIL: ("this node's loopback interface does not have this address", "add it"),
    errno.EAFNOSUPPORT: ("this kernel does not have this IP family", "leave it out of nodePortAddresses"),
    errno.EMFILE: ("too many files are open", "raise the limit of open files"),
    errno.EACCES: ("permission denied", "give CAP_NET_BIND_SERVICE, or the Service a port above 1023"),
}

Changes = Mapping[bytes, ServicePort | None]


class Forwarder:
    """Answers on loopback for all NodePorts that it is told of.

    cidrs: of nodePortAddresses. Without a loopback CIDR among them nothing is done, ever. The thread is there from the
    first TCP NodePort on until `stop`; sockets are of the network namespace of the thread that tells of that one.
    """

    def __init__(self, cidrs: Iterable[IPv4Network | IPv6Network]) -> None:
        self.families = loopback_families(cidrs)
        self._lock = threading.Lock()
        self._refused: dict[bytes, tuple[str, int]] = {}
        self._refused_ports: Counter[tuple[str, int]] = Counter()  # name and protocol; a key for each family
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread, _Listeners] | None = None

    @property
    def rejected(self) -> int:
        """How many service ports have a NodePort now that does not answer on loopback, being of UDP or SCTP."""
        return len(self._refused_ports)

    @property
    def listeners(self) -> Mapping[Family, int]:
        """On how many ports connections are taken now."""
        running = self._running
        return {family: running[2].count[family] if running else 0 for family in self.families}

    def update(self, changes: Changes, complete: bool = False) -> None:
        """changes: by key, of any service ports; None: it is gone. complete: these are all, others are gone.

        Returns at once. Any thread may call it.
        """
        if not self.families:
            return
        mine = {k: port for k, port in changes.items() if is_node_port(k) and family_of(k) in self.families}
        with self._lock:
            if complete:
                for key in self._refused.keys() - mine.keys():
                    self._refuse(key, None)
            forwarded = {}
            for key, port in mine.items():
                if key[1] == _TCP:
                    forwarded[key] = port
                else:
                    self._refuse(key, port)
            if self._running is None and any(forwarded.values()):
                self._running = self._start()
            if self._running and (forwarded or complete):
                loop, _, listeners = self._running
                loop.call_soon_threadsafe(listeners.update, forwarded, complete)

    def stop(self) -> None:
        """Close all ports, reset all connections, end the thread and wait for it. Does nothing if there is none."""
        with self._lock:
            running, self._running = self._running, None
        if running:
            loop, thread, listeners = running
            loop.call_soon_threadsafe(listeners.close)
            thread.join()
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def _start(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread, _Listeners]:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(_report)
        listeners = _Listeners(loop, self.families, _file_limit())
        thread = threading.Thread(target=loop.run_forever, name="forwarder", daemon=True)
        thread.start()
        return loop, thread, listeners

    def _refuse(self, key: bytes, port: ServicePort | None) -> None:
        """Count a NodePort that is not forwarded, and say so when its service port is new."""
        new = (port.name, key[1]) if port else None
        old = self._refused.get(key)
        if new == old:
            return
        if old:
            del self._refused[key]
            self._refused_ports[old] -= 1
            if not self._refused_ports[old]:
                del self._refused_ports[old]
        if new:
            self._refused[key] = new
            self._refused_ports[new] += 1
            if self._refused_ports[new] == 1:
                LOG.warning(
                    "localhost_nodeport_rejected",
                    service=new[0],
                    node_port=describe_key(key),
                    cause="on loopback addresses only TCP is forwarded",
                    remedy="use an address of the node, or the Service's clusterIP",
                )


def _report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback failed; the loop goes on."""
    LOG.error("forwarder_failure", exc_info=context.get("exception"), remedy="report this bug")


class _Listener:
    """One TCP NodePort in one family. sock: None while it cannot listen; `retry` then is the next try."""

    __slots__ = ("family", "key", "name", "picker", "port", "retry", "sock")

    def __init__(self, key: bytes) -> None:
        self.key, self.family, self.port = key, family_of(key), int.from_bytes(key[-4:-2])
        self.name = ""
        self.picker = Picker()
        self.sock: socket.socket | None = None
        self.retry: asyncio.TimerHandle | None = None

    @property
    def spot(self) -> tuple[str, int]:
        return HOSTS[self.family], self.port


class _Listeners:
    """Everything runs in the loop's thread, as callbacks that do not wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, families: Iterable[Family], max_files: int) -> None:
        self.count = dict.fromkeys(families, 0)
        self._loop = loop
        self._max_files = max_files
        self._listeners: dict[bytes, _Listener] = {}
        self._connections = Connections(loop)
        self._taken: list[_Listener] = []  # by others: to be reported, all with one look at the processes
        self._known_errors: set[tuple[Family, int]] = set()
        self._full_told = -math.inf

    def update(self, changes: Changes, complete: bool) -> None:
        if complete:
            for key in self._listeners.keys() - changes.keys():
                self._remove(key)
        for key, port in changes.items():
            endpoints = led_to(port)
            if port is None or not endpoints:
                self._remove(key)  # so that the kernel refuses, as it does elsewhere
                continue
            listener = self._listeners.get(key)
            is_new = listener is None
            if listener is None:
                listener = self._listeners[key] = _Listener(key)
            listener.name = port.name
            listener.picker.update(endpoints, port.timeout)
            if is_new:
                self._listen(listener)

    def close(self) -> None:
        """And end the loop."""
        for key in list(self._listeners):
            self._remove(key)
        self._connections.close()
        self._loop.stop()

    def _remove(self, key: bytes) -> None:
        """Connections stay."""
        listener = self._listeners.pop(key, None)
        if listener is None:
            return
        if listener.retry:
            listener.retry.cancel()
        if listener.sock:
            self._loop.remove_reader(listener.sock)
            listener.sock.close()
            self.count[listener.family] -= 1

    def _listen(self, listener: _Listener, is_retry: bool = False) -> None:
        listener.retry = None
        try:
            if not self._has_room():
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            sock = listening(*listener.spot, BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                if not is_retry:
                    self._report_taken(listener)
            else:
                self._report_error(listener, error)
            listener.retry = self._loop.call_later(RETRY_SECONDS, self._listen, listener, True)
            return
        if is_retry:
            LOG.info(
                "localhost_nodeport_listening", service=listener.name, address=listener.spot[0], port=listener.port
            )
        listener.sock = sock
        self.count[listener.family] += 1
        self._loop.add_reader(sock, self._accept, listener)

    def _report_error(self, listener: _Listener, error: OSError) -> None:
        """Something that is so for all ports: said once."""
        topic = (listener.family, error.errno or 0)
        if topic not in self._known_errors:
            self._known_errors.add(topic)
            cause, remedy = _CAUSES.get(topic[1], (error.strerror or str(error), "see the cause"))
            _warn(listener.name, listener.spot, f"{cause}; maybe also other ports", remedy)

    def _report_taken(self, listener: _Listener) -> None:
        if not self._taken:
            self._loop.call_soon(self._look_for_holders)
        self._taken.append(listener)

    def _look_for_holders(self) -> None:
        taken = {listener.spot: listener.name for listener in self._taken}
        self._taken.clear()
        # That takes long on a node with many processes; connections must not wait for it.
        self._loop.run_in_executor(None, _report_holders, taken)

    # Who comes.

    def _has_room(self, name: str = "") -> bool:
        """For one more. A service port that has as much as is left gets no more: so there is always some for others."""
        left = self._max_files - len(self._listeners) - 2 * len(self._connections)
        return left >= 2 and 2 * self._connections.of(name) <= left

    def _accept(self, listener: _Listener) -> None:
        """Take in those that wait, but not too many at once: others wait, too."""
        assert listener.sock
        for _ in range(ACCEPT_AT_ONCE):
            if not self._has_room(listener.name):
                own = self._connections.of(listener.name)
                self._pause(listener, f"it has {own} connections, of {len(self._connections)} in all")
                return
            try:
                client, address = listener.sock.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it is gone again
            except OSError as error:
                self._pause(listener, error.strerror or str(error))
                return
            self._connections.add(client, address[0], listener.family, listener.picker, listener.name)

    def _pause(self, listener: _Listener, cause: str) -> None:
        """To be called again at once would not help."""
        now = self._loop.time()
        if now - self._full_told > FULL_TOLD_SECONDS:
            self._full_told = now
            LOG.warning(
                "localhost_nodeport_full",
                service=listener.name,
                cause=cause,
                remedy="raise the limit of open files; new connections wait",
            )
        assert listener.sock
        self._loop.remove_reader(listener.sock)
        self._loop.call_later(PAUSE_SECONDS, self._go_on, listener, listener.sock)

    def _go_on(self, listener: _Listener, sock: socket.socket) -> None:
        if self._listeners.get(listener.key) is listener and listener.sock is sock:
            self._loop.add_reader(sock, self._accept, listener)


def _report_holders(taken: Mapping[tuple[str, int], str]) -> None:
    found = holders(taken.keys())
    for spot, service in taken.items():
        _warn(service, spot, f"{found.get(spot, 'another program')} has this port", "stop it, or change the nodePort")


def _warn(service: str, spot: tuple[str, int], cause: str, remedy: str) -> None:
    LOG.warning(
        "localhost_nodeport_not_listening",
        service=service,
        address=spot[0],
        port=spot[1],
        cause=cause,
        remedy=f"{remedy}; {_REMEDY}",
    )


def _file_limit() -> int:
    """How many files the forwarder may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MAX_FILES if soft == resource.RLIM_INFINITY else soft - RESERVED_FILES
    return max(0, min(MAX_FILES, allowed))
