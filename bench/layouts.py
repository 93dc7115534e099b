"""A map of numbers against a verdict map: python -m bench.layouts [SERVICES …]

The obvious layout has one verdict map, service port -> `goto pick-N`. Ours has a map service port -> N. Measured, in
network namespaces of this machine, both with the same Services in them:
- the kernel's time for a transaction that changes one Service's number of endpoints (elements only, acknowledged);
- connect() to a Service of 1 to 1,000 endpoints, interleaved with connect() to no Service at all; through ours also with a
  priority of the packet's own (SO_PRIORITY).
Needs root and nft.
"""

from __future__ import annotations

import socket
import statistics
import struct
import time
from collections.abc import Callable, Sequence

from bench import arguments
from integration.namespaces import enter
from rules import netlink
from rules.diff import Programmed
from rules.elements import ServicePort, endpoint, index, service_key
from rules.kernel import Kernel
from rules.layout import LAYOUTS, Options
from rules.netlink import attribute, nested, text, u32
from rules.netlink_socket import enlarge
from rules.objects import Family
from rules.tables import create
from tests.netns import Namespace

V4 = LAYOUTS[Family.IPV4]
TABLE = V4.table.name
COUNTS = (1, 2, 3, 10, 100, 1000)
PORT = 8080
CHANGES = 100
CONNECTIONS = 40 * 50
PRIORITY = "numbers, priority"
FIRST = 0x0A600100  # 10.96.1.0


def vip(number: int) -> bytes:
    return (FIRST + number).to_bytes(4)


def port(number: int, count: int) -> ServicePort:
    key = service_key(vip(number), 6, 80)
    return ServicePort(key, f"default/service-{number}:http", tuple(pod(i) for i in range(count)))


def pod(number: int) -> bytes:
    """Endpoint `number`: all of 11.0.0.0/8 is local, and one listener answers for it."""
    return endpoint((0x0B000000 + number).to_bytes(4), PORT)


def by_numbers(namespace: Namespace, services: int) -> Callable[[int], float]:
    """Load our layout; gives a function that makes change number i and returns its seconds."""
    programmed = Programmed(Family.IPV4)
    ports = [port(i, count) for i, count in enumerate(COUNTS)] + [port(1000 + i, 2) for i in range(services)]
    plan = programmed.plan({p.key: p for p in ports})
    namespace.kernel.commit([*create(V4, Options(), ()), *plan.operations])
    programmed.accept(plan)

    def change(i: int) -> float:
        new = port(1000 + i, 3)
        plan = programmed.plan({new.key: new})
        started = time.perf_counter()
        namespace.kernel.commit(plan.operations)
        seconds = time.perf_counter() - started
        programmed.accept(plan)
        return seconds

    return change


TYPE, KEY = (f"ip daddr . {protocol} . th dport" for protocol in ("meta l4proto", "ip protocol"))


def verdict_map_text() -> str:
    """The same table around `service-ips`, a verdict map to chains with the exact count in their names."""
    chains = "".join(
        f"chain pick-{n} {{\ndnat ip to {KEY} . numgen random mod {n} map @endpoints\n"
        f"dnat ip to {KEY} . numgen inc mod 1 map @endpoints\n}}\n"
        for n in COUNTS
    )
    return f"""table ip {TABLE} {{
set cluster-ips {{ type ipv4_addr; }}
set hairpins {{ type ipv4_addr . ipv4_addr; }}
map endpoints {{ typeof {TYPE} . numgen random mod 65536 : ip daddr . th dport; }}
map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
chain refuse {{
meta l4proto tcp reject with tcp reset
reject
}}
{chains}
chain services {{
{KEY} vmap @service-ips
ip daddr @cluster-ips goto refuse
}}
chain prerouting {{ type nat hook prerouting priority dstnat; policy accept; jump services; }}
chain output {{ type nat hook output priority -100; policy accept; jump services; }}
chain postrouting {{ type nat hook postrouting priority srcnat; policy accept;
meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random
ct status dnat ip saddr . ip daddr @hairpins masquerade fully-random
}}
}}
"""


def elements(kind: int, set_: str, items: Sequence[bytes]) -> list[bytes]:
    """Element messages by hand: `rules` has no verdict maps."""
    found, head = [], text(1, TABLE) + text(2, set_)
    for start in range(0, len(items), 500):
        body = head + nested(3, *items[start : start + 500])
        found.append(netlink.message(kind, netlink.NLM_F_CREATE, 0, Family.IPV4, body))
    return found


def item(key: bytes, *rest: bytes) -> bytes:
    return nested(1, nested(1, attribute(1, key)), *rest)


def goto(count: int) -> bytes:
    return nested(2, nested(2, u32(1, -4), text(2, f"pick-{count}")))


def send(kernel: Kernel, messages: list[bytes]) -> None:
    """One transaction, acknowledged."""
    last = bytearray(messages[-1])
    struct.pack_into("=H", last, 6, struct.unpack_from("=H", last, 6)[0] | netlink.NLM_F_ACK)
    begin, end = netlink.batch_mark(netlink.BATCH_BEGIN, 0), netlink.batch_mark(netlink.BATCH_END, 0)
    enlarge(kernel._socket, netlink.SO_SNDBUFFORCE, socket.SO_SNDBUF, 64 << 20)
    kernel._socket.send(b"".join([begin, *messages[:-1], bytes(last), end]))
    for reply in netlink.messages(kernel._socket.recv(1 << 16)):
        code, _ = netlink.error_of(reply)
        if code:
            raise OSError(code, "the kernel refused the verdict map")


def by_verdict_map(namespace: Namespace, services: int) -> Callable[[int], float]:
    """The same for the verdict map."""
    namespace.nft("-f", "-", stdin=verdict_map_text())
    counts = [(i, count) for i, count in enumerate(COUNTS)] + [(1000 + i, 2) for i in range(services)]
    ends = [
        item(service_key(vip(n), 6, 80) + index(i), nested(2, attribute(1, pod(i))))
        for n, count in counts
        for i in range(count)
    ]
    homes = [item(service_key(vip(n), 6, 80), goto(count)) for n, count in counts]
    addresses = [item(vip(n)) for n, _ in counts]
    new = netlink.NEWSETELEM
    send(
        namespace.kernel,
        elements(new, "endpoints", ends)
        + elements(new, "service-ips", homes)
        + elements(new, "cluster-ips", addresses),
    )

    def change(i: int) -> float:
        key = service_key(vip(1000 + i), 6, 80)
        messages = elements(netlink.DELSETELEM, "service-ips", [item(key)])
        messages += elements(new, "service-ips", [item(key, goto(3))])
        messages += elements(new, "endpoints", [item(key + index(2), nested(2, attribute(1, pod(2))))])
        started = time.perf_counter()
        send(namespace.kernel, messages)
        return time.perf_counter() - started

    return change


def prepare(namespace: Namespace) -> None:
    for command in (
        "link set lo up",
        "addr add 10.244.0.2/32 dev lo",
        "route add local 11.0.0.0/8 dev lo",
        "route add 10.96.0.0/12 dev lo src 10.244.0.2",
    ):
        assert namespace.run("ip", *command.split()).returncode == 0


def connects(namespaces: dict[str, Namespace]) -> None:
    """Interleaved: connect() times have modes of their own, whatever the rules."""
    listeners = {}
    for name, namespace in namespaces.items():
        with open(f"/proc/self/fd/{namespace.descriptor}") as target:
            enter(target)
        listeners[name] = socket.create_server(("", PORT), backlog=4096)
    times: dict[tuple[str, int], list[float]] = {}
    linger = struct.pack("ii", 1, 0)
    for _ in range(CONNECTIONS // 50):
        for name, namespace in namespaces.items():
            with open(f"/proc/self/fd/{namespace.descriptor}") as target:
                enter(target)
            for i, count in enumerate(COUNTS):
                to = ("10.244.0.2", PORT) if name == "no Service" else (socket.inet_ntoa(vip(i)), 80)
                for _ in range(50):
                    client = socket.socket()
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 6 if name == PRIORITY else 0)
                    started = time.perf_counter_ns()
                    client.connect(to)
                    times.setdefault((name, count), []).append((time.perf_counter_ns() - started) / 1e3)
                    listeners[name].accept()[0].close()
                    client.close()
    print(f"\nconnect(), median of {CONNECTIONS} in µs:")
    print(f"{'endpoints':>20} " + " ".join(f"{count:>7}" for count in COUNTS))
    for name in namespaces:
        print(f"{name:>20} " + " ".join(f"{statistics.median(times[name, count]):7.2f}" for count in COUNTS))


def main() -> None:
    sizes = arguments.given(__doc__, "services", arguments.positive, [1000, 10_000, 44_000])
    print(f"one Service goes from 2 endpoints to 3; the kernel's time, median of {CHANGES} in ms:")
    print(f"{'Services':>20} {'verdict map':>12} {'numbers':>12}")
    for services in sizes:
        medians = []
        for load in (by_verdict_map, by_numbers):
            namespace = Namespace()
            change = load(namespace, services)
            medians.append(statistics.median(change(i) for i in range(CHANGES)) * 1e3)
            namespace.close()
        print(f"{services:>20} {medians[0]:12.4f} {medians[1]:12.4f}")
    namespaces = {name: Namespace() for name in ("no Service", "verdict map", "numbers", PRIORITY)}
    for namespace in namespaces.values():
        prepare(namespace)
    by_verdict_map(namespaces["verdict map"], 10_000)
    for name in ("numbers", PRIORITY):
        by_numbers(namespaces[name], 10_000)
    connects(namespaces)


if __name__ == "__main__":
    main()
