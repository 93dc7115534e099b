"""How long the status page's answers take, and what they cost the agent: python -m bench.status_page [--services 10000].

The agent works in one thread (changes of endpoints, one after the other), the page is asked for in another, as in a node's
agent. The kernel is the fake one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time

import structlog

from proxy.http_message import Request
from proxy.status import pages
from tests import browser
from tests.objects import endpoint_slice
from tests.status_world import StatusWorld, many

ROUNDS = 20
ASKED = (
    ("page", "/", ""),
    ("summary", "/status/summary", ""),
    ("first 50 Services", "/status/services", ""),
    ("last 50 Services", "/status/services", "page=99999"),
    ("search: a name", "/status/services", "q=service-012"),
    ("search: an address", "/status/services", "q=10.96.4.210"),
    ("search: an endpoint", "/status/services", "q=10.128.9.9"),
    ("search: a beginning", "/status/services", "q=10.2"),
    ("search: a port", "/status/services", "q=30080"),
    ("search: nothing", "/status/services", "q=nowhere"),
    ("without endpoints", "/status/services", "show=no-endpoints"),
    ("not programmed", "/status/services", "show=trouble"),
    ("a Service", "/status/service", "namespace=team-1&name=service-00001"),
    ("left out", "/status/rejected", ""),
)
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=10_000)
    parser.add_argument("--endpoints", type=int, default=10, help="of each Service")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    world = StatusWorld(clock=time.monotonic)
    world.list(*many(options.services, options.endpoints))
    print(f"{options.services:,} Services of {options.endpoints} endpoints")
    for name, path, query in ASKED:
        request = Request("GET", path, query)
        times, cpu, size = [], [], 0
        for _ in range(ROUNDS):
            start, cpu_start = time.perf_counter(), time.thread_time()
            size = len(pages.answer(request, world.view).body)
            cpu.append((time.thread_time() - cpu_start) * 1e3)
            times.append((time.perf_counter() - start) * 1e3)
        took = (
            f"{statistics.median(times):6.1f} ms (worst {max(times):.1f} ms), {statistics.median(cpu):5.1f} ms of CPU"
        )
        print(f"{name:20} {took}, {size / 1e3:.1f} kB")
    alone = _changes(world, 300)
    print(f"a change, nobody looks:        p50 {alone[0]:.2f} ms, p99 {alone[1]:.2f} ms")
    end = threading.Event()
    reader = threading.Thread(target=_look, args=(world, end))
    reader.start()
    watched = _changes(world, 300)
    end.set()
    reader.join()
    print(f"a change, ten questions a second: p50 {watched[0]:.2f} ms, p99 {watched[1]:.2f} ms")
    _paint(world)
    return 0


def _look(world: StatusWorld, end: threading.Event) -> None:
    questions = [Request("GET", path, query) for _, path, query in ASKED]
    while not end.wait(0.1):
        pages.answer(questions[0], world.view)
        questions.append(questions.pop(0))


def _changes(world: StatusWorld, count: int) -> tuple[float, float]:
    """How long a turn of the agent takes, in ms: the median and the 99th percentile."""
    times = []
    for i in range(count):
        changed = endpoint_slice(
            f"service-{1 + i % 40:05}", f"10.250.{i >> 8}.{i & 255}", namespace=f"team-{(1 + i % 40) % 20}"
        )
        start = time.perf_counter()
        world.put(changed)
        times.append((time.perf_counter() - start) * 1e3)
        time.sleep(0.01)
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def _paint(world: StatusWorld) -> None:
    program = browser.find()
    if program is None:
        print(f"no Chromium is installed ({', '.join(browser.NAMES)})", file=sys.stderr)
        return
    from tests.status_browser import PageBrowser

    chromium = PageBrowser(program)
    paints = []
    for _ in range(5):
        chromium.visit(lambda request: pages.answer(request, world.view) if request.path in pages.PATHS else None)
        paints.append(chromium.ask(PAINT))
    chromium.close()
    print(f"painted: {statistics.median(paints):.0f} ms (worst of {len(paints)}: {max(paints):.0f} ms)")


if __name__ == "__main__":
    sys.exit(main())
