"""Documents (JSON, YAML), damaged as trees: what comes out has the right syntax and the wrong content."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import yaml

from tests.fuzz.mutate import Mutation

ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 53, 65535, 65536, 2**31 - 1, 2**31, 2**63, 2**64, -(2**31) - 1, 1e300, 0.5,
    "", " ", "x", "x" * 300, "x" * 70_000, "\0", "\x1b[31m", '"', "\\", "\n", "a\nb", "ü", "\u2028", "\ud800", "\U0001f600",
    "0", "-1", "80", "http", "None", "null", "true", "0.0.0.0", "::", "::1", "127.0.0.1", "10.96.0.1", "fd00::1", "1.2.3",
    "::ffff:10.0.0.1", "010.1.1.1", "fe80::1%eth0", "255.255.255.255", "224.0.0.1", "10.0.0.0/8", "0.0.0.0/0", "::/0",
    "10.0.0.1/33", "10.0.0.1/", "TCP", "UDP", "SCTP", "tcp", "Local", "Cluster", "ClientIP", "NodePort", "LoadBalancer",
    "ExternalName", "Headless", "IPv4", "IPv6", "FQDN", "VIP", "Proxy", "rr", "sh", "24h", "1h0m0s", "-5s", "9" * 400,
    "2026-01-01T00:00:00Z", "2026-13-45", "ADDED", "DELETED", "BOOKMARK", "ERROR", "nftables", "ipvs", "!!int x",
    [], {}, [[]], [{}], [None], {"": ""}, {"a": None}, [0] * 1000,
)  # fmt: skip
"""Values that somebody might not have thought of."""


def tree_mutation(load: Callable[[bytes], Any], dump: Callable[[Any], bytes]) -> Mutation:
    """Of what `load` reads; what it cannot read stays as it is."""

    def mutate(rand: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
        try:
            tree = load(data)
            others = [load(rand.choice(corpus))]
            for _ in range(rand.choice((1, 1, 2, 5))):
                tree = change(rand, tree, others)
            return dump(tree)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, yaml.YAMLError, RecursionError):
            return data  # PyYAML raises many things

    return mutate


def change(rand: random.Random, tree: Any, others: Sequence[Any]) -> Any:
    """A copy with one thing changed somewhere. others: documents to take parts from."""
    tree = copy.deepcopy(tree)
    places = list(_places(tree))
    if not places:
        return _value(rand, tree, others)
    parent, key = rand.choice(places)
    value = parent[key]
    match rand.randrange(8):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(value))
        case 1:
            parent[_key(rand, others)] = copy.deepcopy(value)
        case 2 if isinstance(parent, list):
            rand.shuffle(parent)
        case 2:
            parent[_key(rand, others)] = parent.pop(key)
        case 3:
            parent[key] = _nested(rand, value)
        case _:
            parent[key] = _value(rand, value, others)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything in it."""
    waiting = [tree]
    while waiting:
        here = waiting.pop()
        inside = here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ()
        for key, value in inside:
            yield here, key
            waiting.append(value)


def _value(rand: random.Random, value: Any, others: Sequence[Any]) -> Any:
    if isinstance(value, str) and value and rand.random() < 0.3:
        at = rand.randrange(len(value))
        return (
            value[:at] + rand.choice(("", ".", ":", "/", "0", " ", "%", "\n", value)) + value[at + rand.randint(0, 1) :]
        )
    if rand.random() < 0.4:
        found = [place[key] for other in others for place, key in _places(other)]
        if found:
            return copy.deepcopy(rand.choice(found))
    return copy.deepcopy(rand.choice(ODD))


def _key(rand: random.Random, others: Sequence[Any]) -> Any:
    found = [key for other in others for place, key in _places(other) if isinstance(place, dict)]
    return rand.choice(found) if found and rand.random() < 0.7 else rand.choice(("", "x", "<<", "?", "x" * 300, "\0"))


def _nested(rand: random.Random, value: Any) -> Any:
    for _ in range(rand.choice((1, 2, 90, 400))):
        value = [value] if rand.random() < 0.5 else {"x": value}
    return value


def load_json(data: bytes) -> Any:
    return json.loads(data)


def dump_json(tree: Any) -> bytes:
    return json.dumps(tree, ensure_ascii=False, default=str).encode(errors="surrogatepass")


def load_lines(data: bytes) -> Any:
    """JSON, a document a line."""
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def dump_lines(tree: Any) -> bytes:
    return b"".join(dump_json(line) + b"\n" for line in (tree if isinstance(tree, list) else [tree]))


def load_yaml(data: bytes) -> Any:
    if b"&" in data:
        raise ValueError("it may be a bomb")
    return list(yaml.load_all(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def dump_yaml(tree: Any) -> bytes:
    """In blocks, or as JSON, which is YAML too."""
    documents = tree if isinstance(tree, list) else [tree]
    if len(documents) == 1 and len(repr(documents)) % 2:
        return dump_json(documents[0])
    text: str = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True)
    return text.encode(errors="surrogatepass")


JSON: Final = tree_mutation(load_json, dump_json)
LINES: Final = tree_mutation(load_lines, dump_lines)
YAML: Final = tree_mutation(load_yaml, dump_yaml)
