"""What session affinity costs a new connection: python -m bench.affinity

connect() from one of a pod's many addresses to a Service with session affinity, as a client that it knows already and as
one that it does not, to a Service without, and to no Service at all; with 2, 50 and 1,000 endpoints; in our table and in
kube-proxy's nftables layout, which asks for each endpoint's clients one after the other. Needs root.
"""

from __future__ import annotations

import itertools
import random
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from bench import arguments
from bench.cluster import FIRST_CLUSTER_IP, address
from bench.dataplane_connect import Road, difference, each, tcp, time_of, undisturbed
from bench.dataplane_rules import LOADERS, NFTABLES, OURS, available
from bench.dataplane_services import CLUSTER_PORT, Port, pods
from bench.dataplane_world import POD_CLIENTS, POD_PORT, World, clients

COUNTS = (2, 50, 1000)
TIMEOUT = 10800
KNOWN = 256  # clients that have been here before
DIRECT, PLAIN, STICKY, FIRST = "direct", "no affinity", "known client", "new client"
A_ROUND = 20


def measure(rounds: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """By layout, number of endpoints, kind: the time, and how much more than without affinity."""
    found: dict[str, Any] = {}
    names = [name for name in (OURS, NFTABLES) if available(name)]
    worlds: dict[str, World] = {}
    try:
        for name in names:
            progress(f"session affinity: {name}")
            worlds[name] = World()
            LOADERS[name](worlds[name].node, list(_ports()))
        listeners = {name: world.listener() for name, world in worlds.items()}
        for number, count in enumerate(COUNTS):
            roads = {name: _roads(number, count) for name in names}
            for name in names:
                _introduce(worlds[name], listeners[name], roads[name][STICKY].places[0][0])
            progress(f"session affinity: {count} endpoints")
            with undisturbed():
                for _ in range(rounds):
                    for name in random.sample(names, len(names)):
                        tcp(worlds[name], "pod", listeners[name], list(roads[name].values()), A_ROUND)
            for name in names:
                plain = roads[name][PLAIN]
                found.setdefault(name, {})[str(count)] = {
                    kind: {"time": time_of(road), "more than without": difference(road, plain)}
                    for kind, road in roads[name].items()
                }
        for listener in listeners.values():
            listener.close()
    finally:
        for world in worlds.values():
            world.close()
    return found


def _place(number: int, sticky: bool) -> str:
    return address(FIRST_CLUSTER_IP + 2 * number + sticky)


def _ports() -> list[Port]:
    return [
        Port(
            f"default/service-{number}-{count}:{'sticky' if timeout else 'plain'}",
            "tcp",
            _place(number, timeout > 0),
            pods(0, count),
            affinity=timeout,
        )
        for number, count in enumerate(COUNTS)
        for timeout in (0, TIMEOUT)
    ]


def _roads(number: int, count: int) -> dict[str, Road]:
    known, new = itertools.count(), itertools.count(number << 14 | KNOWN)

    def known_clients(wanted: int) -> Sequence[str]:
        return [_client(next(known) % KNOWN) for _ in range(wanted)]

    def new_clients(wanted: int) -> Sequence[str]:
        return [_client(next(new) & 0xFFFF) for _ in range(wanted)]

    sticky = each([(_place(number, True), CLUSTER_PORT)])
    return {
        DIRECT: Road([[(pod, POD_PORT) for pod in pods(0, count)]], known_clients),
        PLAIN: Road(each([(_place(number, False), CLUSTER_PORT)]), known_clients),
        STICKY: Road(sticky, known_clients),
        FIRST: Road(sticky, new_clients),
    }


def _client(number: int) -> str:
    return address(POD_CLIENTS + number)


def _introduce(world: World, listener: socket.socket, to: tuple[str, int]) -> None:
    for sock in clients(world.pod, KNOWN, sources=[_client(i) for i in range(KNOWN)]):
        sock.connect(to)
        listener.accept()[0].close()
        sock.close()


def lines(found: dict[str, Any]) -> list[str]:
    """As a table."""
    kinds = (DIRECT, PLAIN, STICKY, FIRST)
    result = [f"{'endpoints':<30}" + "".join(f"{kind:>22}" for kind in kinds)]
    for name, by_count in found.items():
        for count, by_kind in by_count.items():
            cells = []
            for kind in kinds:
                more = by_kind[kind]["more than without"]["median"]
                said = f" ({more:+.2f})" if kind in (STICKY, FIRST) else ""
                cells.append(f"{by_kind[kind]['time']['median']:.2f}{said}")
            result.append(f"{name + ', ' + count:<30}" + "".join(f"{cell:>22}" for cell in cells))
    return result


def main() -> None:
    arguments.parser(__doc__).parse_args()
    print("connect() in µs, medians; in brackets: more than to a Service without affinity")
    print("\n".join(lines(measure(150, lambda text: print(text, file=sys.stderr)))))


if __name__ == "__main__":
    main()
