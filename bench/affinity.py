"""What session affinity costs a new connection: python -m bench.affinity [CLIENTS]

connect() from one of CLIENTS addresses (default 1,000) to a Service with session affinity, as a client that it knows
already and as one that it does not, to a Service without, and to no Service at all; with 2, 50 and 1,000 endpoints. All is
on one machine: what is measured is a TCP handshake over loopback and the rules. The kinds take turns, with few
connections a turn, because connect() times have modes of their own. Needs root.
"""

from __future__ import annotations

import socket
import statistics
import struct
import sys
import time

from bench.layouts import PORT, pod, prepare, vip
from integration.namespaces import _setns  # the one way to enter a namespace by descriptor
from rules.diff import scratch
from rules.elements import ServicePort, service_key
from rules.layout import LAYOUTS, Options
from rules.objects import Family
from rules.tables import create
from tests.netns import Namespace

COUNTS = (2, 50, 1000)
TURNS, A_TURN = 150, 20
TIMEOUT = 10800
CLIENTS = 0x0A4D0000  # 10.77.0.0
NO_SERVICE, PLAIN, FIRST, STICKY = "no Service", "no affinity", "sticky, new client", "sticky, known client"
LINGER = struct.pack("ii", 1, 0)


def load(namespace: Namespace) -> dict[tuple[str, int], tuple[str, int]]:
    """Services of both kinds, and where each is reached."""
    targets, ports = {}, []
    for number, (kind, count) in enumerate((kind, count) for kind in (PLAIN, FIRST, STICKY) for count in COUNTS):
        key = service_key(vip(number), 6, 80)
        pods = tuple(pod(i) for i in range(count))
        ports.append(
            ServicePort(
                key, f"default/service-{number}", pods, timeout=0 if kind == PLAIN else TIMEOUT, identity=1 + number
            )
        )
        targets[kind, count] = socket.inet_ntoa(vip(number)), 80
    layout = LAYOUTS[Family.IPV4]
    namespace.kernel.commit([*create(layout, Options(), ()), *scratch(Family.IPV4, ports).operations])
    targets |= {(NO_SERVICE, count): (socket.inet_ntoa(pod(0)[:4]), PORT) for count in COUNTS}
    return targets


def client(number: int) -> str:
    return socket.inet_ntoa((CLIENTS + number).to_bytes(4))


def connect(listener: socket.socket, source: str, to: tuple[str, int]) -> float:
    """Microseconds that connect() takes."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    sock.bind((source, 0))
    started = time.perf_counter_ns()
    sock.connect(to)
    taken = (time.perf_counter_ns() - started) / 1e3
    listener.accept()[0].close()
    sock.close()
    return taken


def main() -> None:
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    namespace = Namespace()
    with open(f"/proc/self/fd/{namespace.descriptor}") as target:
        _setns(target)
    prepare(namespace)
    assert namespace.run("ip", "route", "add", "local", "10.76.0.0/15", "dev", "lo").returncode == 0
    targets = load(namespace)
    listener = socket.create_server(("", PORT), backlog=4096)
    for count in COUNTS:
        for i in range(clients):
            connect(listener, client(i), targets[STICKY, count])
    times: dict[tuple[str, int], list[float]] = {}
    new = 1 << 16  # numbers of clients that have not been here yet: beyond those that have
    for turn in range(TURNS):
        for (kind, count), to in targets.items():
            for i in range(turn * A_TURN, (turn + 1) * A_TURN):
                number = new - 1 - i if kind == FIRST else i % clients
                times.setdefault((kind, count), []).append(connect(listener, client(number), to))
    print(f"connect() from one of {clients} addresses, median (10% were faster, 10% slower) of {TURNS * A_TURN} in µs:")
    print(f"{'endpoints':>22} " + " ".join(f"{count:>22}" for count in COUNTS))
    for kind in (NO_SERVICE, PLAIN, STICKY, FIRST):
        cells = []
        for count in COUNTS:
            deciles = statistics.quantiles(times[kind, count], n=10)
            cells.append(f"{statistics.median(times[kind, count]):7.2f} ({deciles[0]:.2f}, {deciles[8]:.2f})")
        print(f"{kind:>22} " + " ".join(f"{cell:>22}" for cell in cells))
    namespace.close()


if __name__ == "__main__":
    main()
