"""Real data, from tests/data: what damage begins with."""

from __future__ import annotations

import functools
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from proxy.model import KINDS
from tests.recordings import Exchange, numbers

DATA: Final = Path(__file__).parents[1] / "data"
NETLINK: Final = Path(__file__).parent / "netlink"
SEPARATOR: Final = b"\xff<next>\xff"
"""Between the datagrams of a recording."""


@functools.cache
def files(*patterns: str) -> dict[str, bytes]:
    """Content by path, of what these patterns find below tests/data."""
    found = {path for pattern in patterns for path in DATA.glob(pattern) if path.is_file()}
    return {str(path.relative_to(DATA)): path.read_bytes() for path in sorted(found)}


@functools.cache
def answers(kind: str) -> tuple[bytes, ...]:
    """Bodies of a real API server's answers: 'list', 'watch' or 'other'."""
    found = []
    for number in numbers():
        exchange = Exchange(number)
        is_watch = "watch=" in exchange.path
        is_list = exchange.method == "GET" and not is_watch and b'List"' in exchange.body[:200]
        if kind == ("watch" if is_watch else "list" if is_list else "other"):
            found.append(exchange.body)
    return tuple(found)


@functools.cache
def objects() -> tuple[dict[str, Any], ...]:
    """Services, EndpointSlices, Nodes and ServiceCIDRs of recorded flows and of a real API server's lists."""
    found = {}
    for data in files("flows/*.json").values():
        for step in json.loads(data)["steps"]:
            for item in step["objects"]:
                found[json.dumps(item)] = item
    for body in answers("list"):
        try:
            listed = json.loads(body)
        except ValueError:  # it was broken on purpose, or is compressed
            continue
        for item in listed.get("items") or ():
            whole = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List"), **item}
            found[json.dumps(whole)] = whole
    return tuple(item for item in found.values() if item.get("kind") in KINDS)


@functools.cache
def scenes() -> tuple[tuple[dict[str, Any], ...], ...]:
    """The objects of each step of the recorded flows."""
    steps = [step for data in files("flows/*.json").values() for step in json.loads(data)["steps"]]
    return tuple(tuple(item for item in step["objects"] if item.get("kind") in KINDS) for step in steps)


@functools.cache
def recording(name: str) -> bytes:
    """Datagrams of a real kernel, with SEPARATOR between them."""
    return lzma.decompress((NETLINK / f"{name}.xz").read_bytes())


def replies(name: str, kind: int | None = None) -> Sequence[bytes]:
    """Those of a recording; kind: only those that begin with a message of this nlmsg_type (lower byte)."""
    listed = recording(name).split(SEPARATOR)
    return [data for data in listed if kind is None or (len(data) > 16 and data[4] == kind)]
