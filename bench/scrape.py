"""What a scrape costs, and what it costs others: python -m bench.scrape [SERVICESxENDPOINTS[+SERVICES WITHOUT ENDPOINTS]]

In a network namespace of its own: an agent with everything loaded, and what it serves on the metrics port. Another process
scrapes it ten times a second. Changes (one endpoint replaced, event to acknowledged commit) are timed without it and with
it. Needs root.
"""

from __future__ import annotations

import gc
import http.client
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import structlog

from bench import arguments, cluster
from proxy import metrics
from proxy.agent import Agent
from proxy.config_values import HostPort
from proxy.events import Inbox, Put, Replace
from proxy.measures import Measures
from proxy.metrics_table import Sources
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR
from proxy.no_endpoint_packets import NoEndpointPackets
from proxy.page_server import PageServer
from proxy.state import State
from rules.kernel import Kernel
from rules.objects import Family
from rules.table_reader import TableReader

SIZES = ("10000x10", "10000x10+1000", "10000x10+10000")
PORT = 10249
ROUNDS = 1000
PAUSE = 0.01
"""Between two changes: so they fall anywhere in a scrape."""
SCRAPES = 100
INTERVAL = 0.1


def scrape() -> None:
    """In a process of its own: prints how long scrapes took."""
    times, size = [], 0
    begin = time.monotonic()
    for i in range(SCRAPES):
        time.sleep(max(0.0, begin + i * INTERVAL - time.monotonic()))
        started = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", PORT)
        connection.request("GET", metrics.METRICS)
        size = len(connection.getresponse().read())
        times.append(time.perf_counter() - started)
        connection.close()
    print(f"  a scrape ({size // 1024} kB)                  {_milliseconds(times)}", flush=True)


def measure(size: str) -> None:
    """In this process and namespace."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    full, _, without = size.partition("+")
    count, endpoints = map(int, full.split("x"))
    measures = Measures()
    follower = [lambda done: measures.local_policies.update(done.ports, everything=done.everything)]
    agent = Agent(State("node-1"), Kernel(), Inbox(), followers=follower, syncs=measures.syncs)
    services = list(cluster.services(count + int(without or 0)))
    slices = list(cluster.slices(count, endpoints))
    agent.handle(
        [Replace(SERVICE, services), Replace(ENDPOINT_SLICE, slices), Replace(NODE, []), Replace(SERVICE_CIDR, [])]
    )
    del services, slices
    gc.collect()
    registry = metrics.registry("bench")
    counters = NoEndpointPackets(TableReader)
    sources = Sources(families=tuple(Family), agent=agent, measures=measures, no_endpoints=counters)
    registry.register(metrics.Table(sources))
    bind = HostPort("127.0.0.1", PORT)
    server = PageServer("metrics", "metricsBindAddress", bind, [Family.IPV4], metrics.pages(registry))
    server.start()
    print(f"{size}:")
    print(f"  a change, nobody scrapes          {_milliseconds(changes(agent, count, endpoints))}", flush=True)
    scraper = subprocess.Popen([sys.executable, "-m", "bench.scrape", "--scrape"])
    times: list[float] = []
    while scraper.poll() is None:
        times += changes(agent, count, endpoints, rounds=50)
    print(f"  a change, {1 / INTERVAL:.0f} scrapes a second       {_milliseconds(times)}", flush=True)
    server.stop()


def changes(agent: Agent, count: int, endpoints: int, rounds: int = ROUNDS) -> list[float]:
    times = []
    for i in range(rounds):
        service = i * 37 % count
        numbers = list(range(service * endpoints, (service + 1) * endpoints))
        numbers[0] = 0x00F00000 + time.monotonic_ns() % 0xFFFFF
        event = Put(cluster.endpoint_slice(service, numbers))
        time.sleep(PAUSE)
        started = time.perf_counter()
        agent.handle([event])
        times.append(time.perf_counter() - started)
    return times


def _milliseconds(seconds: Sequence[float]) -> str:
    times = sorted(s * 1e3 for s in seconds)
    at = [times[min(len(times) - 1, int(len(times) * share))] for share in (0.99, 1.0)]
    return f"median {statistics.median(times):7.3f} ms   p99 {at[0]:7.3f} ms   max {at[1]:7.3f} ms"


def _size(text: str) -> str:
    full, plus, without = text.partition("+")
    return f"{arguments.size(full)}{plus}{arguments.positive(without) if plus else ''}"


def main(argv: Sequence[str]) -> None:
    if argv[:1] == ["--scrape"]:
        scrape()
    elif argv[:1] == ["--here"]:
        measure(argv[1])
    else:
        for size in arguments.given(__doc__, "size", _size, SIZES):
            subprocess.run(["unshare", "--net", sys.executable, "-m", "bench.scrape", "--here", size], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
