"""Where the time of a first load and of one change goes: python -m bench.profiles [SERVICESxENDPOINTS]

The agent's own loop, from the API server's JSON to the acknowledged commit, in a network namespace of its own, under cProfile
(which makes Python's functions slower than they are, and what is written in C not): by module, then the functions that
take most. Needs root. `perf record -g` on the same command shows the kernel's part, which is `sendmsg` and `recv` here.
"""

from __future__ import annotations

import cProfile
import gc
import json
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from bench import api_objects
from bench.cluster import FIRST_POD_IP
from bench.dataplane_services import Size
from bench.machine import CHECKOUT
from bench.marks import FIRST_POD
from bench.plan import sizes
from proxy.agent import Agent
from proxy.events import Event, Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR, decode
from proxy.state import State
from rules.kernel import Kernel

SIZE: Final = "10000x10"
CHANGES: Final = 1000
MOST: Final = 12
"""Functions that are shown."""


def measure(size: Size) -> None:
    """In this process and namespace."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    agent = Agent(State(api_objects.NODE), Kernel(), Inbox())
    lines: dict[str, list[bytes]] = {SERVICE: [], ENDPOINT_SLICE: [], NODE: [], SERVICE_CIDR: []}
    for obj in api_objects.objects(size.services, size.endpoints):
        if obj["kind"] in lines:
            lines[obj["kind"]].append(json.dumps(obj).encode())

    def load() -> None:
        agent.handle([Replace(kind, [decode(kind, line) for line in those]) for kind, those in lines.items()])

    _show(f"{size}: first load", load, 1)
    lines.clear()
    gc.collect()
    gc.freeze()
    changes = [_changed(size, number) for number in range(CHANGES)]

    def change() -> None:
        for line in changes:
            events: list[Event] = [Put(decode(ENDPOINT_SLICE, line))]
            agent.handle(events)

    _show(f"{size}: one endpoint changes", change, CHANGES)


def _changed(size: Size, number: int) -> bytes:
    service = number * 7919 % size.services
    pods = api_objects.pods_of(service, size.endpoints)
    pods[0] = FIRST_POD + number - FIRST_POD_IP
    return json.dumps(api_objects.endpoint_slice(service, pods)).encode()


def _show(title: str, work: Callable[[], None], times: int) -> None:
    """Per time that it is done."""
    profile = cProfile.Profile()
    began = time.perf_counter()
    profile.runcall(work)
    seconds = time.perf_counter() - began
    unit, scale = ("ms", 1e3 / times) if seconds / times > 0.01 else ("µs", 1e6 / times)
    print(f"\n{title}: {seconds * scale:,.0f} {unit} under the profiler, of which")
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    taken = {where: own for where, (_, _, own, _, _) in stats.items()}
    modules: dict[str, float] = {}
    for (file, _, name), own in taken.items():
        module = module_of(file, name)
        modules[module] = modules.get(module, 0.0) + own
    for rows in (modules, {f"{module_of(file, name)}: {name}": own for (file, _, name), own in taken.items()}):
        print()
        for name, own in sorted(rows.items(), key=lambda row: -row[1])[:MOST]:
            print(f"  {own * scale:10,.1f} {unit} {own / seconds * 100:5.1f} %  {name}")


def module_of(file: str, name: str) -> str:
    """Of a function as profilers name it: a module of ours, or where else it is."""
    path = Path(file)
    if path.is_relative_to(CHECKOUT):
        return ".".join(path.relative_to(CHECKOUT).with_suffix("").parts)
    if file == "~":
        if "socket" in name:
            return "the kernel (socket calls)"
        return "msgspec" if "msgspec" in name else "Python's built-in functions"
    return path.stem


def main(arguments: Iterable[str]) -> int:
    one, *rest = [*arguments] or [SIZE]
    if one == "--here":
        measure(sizes(rest)[0])
        return 0
    try:
        sizes([one])
    except ValueError as error:
        print(f"bench.profiles: {error}", file=sys.stderr)
        return 2
    return subprocess.run(["unshare", "-n", sys.executable, "-m", "bench.profiles", "--here", one]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
