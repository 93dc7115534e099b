"""What it costs to forget the flows of one service port, and to compare all, in a table of 100,000 flows.

`python -m bench.conntrack [FLOWS]`, as root.
"""

from __future__ import annotations

import socket
import statistics
import struct
import subprocess
import sys
import time

from bench import arguments
from proxy.conntrack import Stale
from proxy.conntrack_socket import (
    CT_NEW,
    DESTINATION,
    DESTINATION_PORT,
    PROTO_NUM,
    SOURCE,
    SOURCE_PORT,
    TUPLE_IP,
    TUPLE_ORIG,
    TUPLE_PROTO,
    TUPLE_REPLY,
    UDP,
    FlowTable,
    message,
)
from proxy.udp import UdpChange, UdpFlows
from rules.elements import endpoint, service_key
from rules.netlink import NETLINK_NETFILTER, NLM_F_ACK, NLM_F_CREATE, attribute, nested
from rules.objects import Family

TIMEOUT, STATUS, CONFIRMED = 7, 3, 1 << 3
AT_ONCE, ROUNDS, EACH = 64, 20, 10
PORT = 53


def clusterip(number: int) -> bytes:
    return struct.pack(">I", 0x0A600000 + number)


def pod(number: int) -> bytes:
    return struct.pack(">I", 0x0AF40000 + number)


def tuple_(kind: int, source: bytes, source_port: int, to: bytes, port: int) -> bytes:
    family = Family.IPV4
    return nested(
        kind,
        nested(TUPLE_IP, attribute(SOURCE[family], source), attribute(DESTINATION[family], to)),
        nested(
            TUPLE_PROTO,
            attribute(PROTO_NUM, bytes([UDP])),
            attribute(SOURCE_PORT, struct.pack(">H", source_port)),
            attribute(DESTINATION_PORT, struct.pack(">H", port)),
        ),
    )


def new_flow(sequence: int, number: int, service: int, flags: int) -> bytes:
    """Flow number `number` to service number `service`, which has one endpoint."""
    source = struct.pack(">I", 0x0B000000 + number)
    return message(
        CT_NEW,
        NLM_F_CREATE | flags,
        sequence,
        Family.IPV4,
        tuple_(TUPLE_ORIG, source, 1000, clusterip(service), PORT),
        tuple_(TUPLE_REPLY, pod(service), PORT, source, 1000),
        attribute(TIMEOUT, struct.pack(">I", 3600)),
        attribute(STATUS, struct.pack(">I", CONFIRMED)),
    )


def fill(flows: int) -> None:
    """EACH flows to every service."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as kernel:
        kernel.bind((0, 0))
        for start in range(0, flows, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, flows))
            requests = [new_flow(1, i, i // EACH, NLM_F_ACK if i == numbers[-1] else 0) for i in numbers]
            kernel.send(b"".join(requests))
            (code,) = struct.unpack_from("=i", kernel.recv(1 << 16), 16)
            if code:
                raise OSError(-code, "the kernel does not take the flows: is net.netfilter.nf_conntrack_max too low?")


def measure(flows: int) -> None:
    fill(flows)
    services = flows // EACH
    ips: dict[Family, frozenset[bytes]] = {family: frozenset() for family in Family}
    times = []
    for i in range(ROUNDS):
        key = service_key(clusterip(i), UDP, PORT)
        change = UdpChange(key, frozenset({endpoint(pod(i), PORT)}), False)
        stale = Stale({key: change}, False, {}, ips)
        started = time.perf_counter()
        with FlowTable() as table:
            found = [flow for flow in table.flows(Family.IPV4, clusterip(i), key[-4:]) if flow in stale]
            assert table.forget(found) == EACH
        times.append((time.perf_counter() - started) * 1e3)
    times.sort()
    print(
        f"{flows} flows: forget the {EACH} of one service port: median {statistics.median(times):.1f} ms, max {times[-1]:.1f} ms"
    )

    programmed = {
        service_key(clusterip(i), UDP, PORT): UdpFlows(frozenset({endpoint(pod(i), PORT)}), True)
        for i in range(services)
    }
    everything = Stale({}, True, programmed, ips)
    started = time.perf_counter()
    with FlowTable() as table:
        read = list(table.flows(Family.IPV4))
        assert not any(flow in everything for flow in read)
    print(f"  compare all {len(read)}: {time.perf_counter() - started:.2f} s")
    started = time.perf_counter()
    with FlowTable() as table:
        table.forget(read)
    print(f"  forget all of them: {time.perf_counter() - started:.2f} s")


def main() -> None:
    if sys.argv[1:2] == ["--here"]:
        measure(int(sys.argv[2]))
        return
    for flows in arguments.given(__doc__, "flows", arguments.positive, [100_000]):
        subprocess.run(["unshare", "-n", sys.executable, "-m", "bench.conntrack", "--here", str(flows)], check=True)


if __name__ == "__main__":
    main()
