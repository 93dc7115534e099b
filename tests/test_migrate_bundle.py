"""Bundles: read again they are what was written; what is no bundle is named; nothing secret is in one."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.detect.evidence import ConfiguredMode, KubeChains, Place
from proxy.errors import SourceError, UsageError
from proxy.migrate import bundle
from proxy.migrate.bundle_text import parse_key
from proxy.migrate.entries import Beside, Dataplane, Entry
from proxy.migrate.facts import (
    BaseChain,
    Facts,
    ForwardFilter,
    Interface,
    Listener,
    MarkUse,
    NodeFacts,
    PresentProxy,
)
from proxy.migrate.report import Proof
from proxy.model import convert
from proxy.snapshot import reduced
from proxy.unread import Unread
from rules.elements import describe_key, endpoint, node_port_key, service_key
from rules.objects import Family
from tests.migrate_nodes import objects

V4, V6 = bytes([10, 96, 0, 1]), bytes([0xFD, *bytes(14), 1])
ENTRIES = (
    Entry(
        service_key(V4, 6, 443),
        "default/kubernetes:https",
        frozenset({endpoint(bytes([10, 0, 0, 1]), 6443), endpoint(bytes([10, 0, 0, 2]), 6443)}),
        frozenset({endpoint(bytes([10, 0, 0, 1]), 6443)}),
        "",
        "drop",
        True,
        10800,
        ((bytes([10, 1, 0, 0]), bytes([10, 1, 255, 255])),),
        "wlc",
        17,
        True,
        True,
    ),
    Entry(service_key(V6, 132, 1), "a/b:", frozenset({endpoint(V6, 65535)}), frozenset({endpoint(V6, 65535)})),
    Entry(node_port_key(Family.IPV6, 17, 30053), "", refusal="reject", outside_refusal="reject", sources=()),
)
BESIDE = Beside(
    {"ip": "10.244.0.0/16", "ip6": ""},
    frozenset({bytes((6,)) + endpoint(V4, 8080), bytes((17,)) + endpoint(V6, 53)}),
    frozenset({node_port_key(Family.IPV6, 6, 30207)}),
    ((V4, bytes([10, 96, 0, 255])),),
    (service_key(V6, 6, 80),),
    (node_port_key(Family.IPV4, 132, 30001),),
)
FACTS = Facts(
    "node0",
    "2026-11-30T12:00:00Z",
    "kube-proxy-nft 0.1.0",
    PresentProxy("ipvs", True, {"mode": "ipvs", "ipvs": {"strictARP": True}}, "config.conf", "v1.36.2"),
    {"Service": [msgspec.Raw(b'{"metadata":{"name":"web"}}')], "Node": []},
    NodeFacts(
        True,
        "6.1.0",
        ("CONFIG_NFT_NUMGEN",),
        (Interface("eth0", (V4, V6)), Interface("lo")),
        (Listener("TCP", bytes(4), 22, "sshd"), Listener("UDP", bytes(16), 53)),
        {"net/ipv4/ip_forward": "1"},
        5,
        262144,
        (BaseChain("inet", "firewalld", "filter_FORWARD", "filter", "forward", 10, "drop", 3, "firewalld"),),
        (ForwardFilter("chain ip filter FORWARD", "yes", ("-d 10.244.0.0/16 -j ACCEPT",)),),
        (MarkUse("chain ip mangle cali-PREROUTING", 0xFFFF0000, "calico"),),
        12,
        ("calico",),
        "kubeadm",
    ),
    (
        Dataplane("ipvs", ENTRIES, (V4, bytes(16)), 0x4000, "netlink", (Unread("x", "y", "z"),), True, beside=BESIDE),
        Dataplane("nftables", ()),
    ),
    (
        ConfiguredMode(place=Place("file", "/etc/x", line=3, node="node0"), mode="ipvs"),
        KubeChains(place=Place("iptables", "nft"), mode="", chains=1, services=2),
    ),
    (Unread("Services", "HTTP 403", "grant it"),),
    "v1.36.2",
    "API server x",
    proof=Proof("accepted", "a network namespace", "6.1.0", 7, 800, 1.5),
)


def unpacked(facts: Facts) -> Any:
    return json.loads(gzip.decompress(bundle.encode(facts)))


def same(facts: Facts) -> bool:
    """Whether they are FACTS, however their objects are indented."""
    plain = {kind: [msgspec.json.decode(raw) for raw in raws] for kind, raws in facts.objects.items()}
    assert plain == {"Service": [{"metadata": {"name": "web"}}], "Node": []}
    return msgspec.structs.replace(facts, objects={}) == msgspec.structs.replace(FACTS, objects={})


def test_what_was_written_is_read_again() -> None:
    assert same(bundle.decode(bundle.encode(FACTS), "x"))


def test_the_same_facts_give_the_same_bytes() -> None:
    assert bundle.encode(FACTS) == bundle.encode(bundle.decode(bundle.encode(FACTS), "x"))


def test_it_is_text_for_people() -> None:
    [first, *_] = unpacked(FACTS)["dataplanes"][0]["entries"]
    assert first["address"] == "10.96.0.1:443/TCP" and first["endpoints"] == ["10.0.0.1:6443", "10.0.0.2:6443"]
    assert first["sources"] == ["10.1.0.0-10.1.255.255"]
    assert unpacked(FACTS)["interfaces"][0] == {"name": "eth0", "addresses": ["10.96.0.1", "fd00::1"]}
    assert unpacked(FACTS)["listeners"][1]["address"] == "[::]:53/UDP"


@pytest.mark.parametrize(
    "key",
    [
        *(entry.key for entry in ENTRIES),
        service_key(V4, 47, 9),
        node_port_key(Family.IPV4, 6, 1),
        service_key(bytes(16), 6, 65535),
    ],
)
def test_keys_are_read_as_they_are_described(key: bytes) -> None:
    assert parse_key(describe_key(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1",
        "10.0.0.1:80",
        "10.0.0.300:1/TCP",
        "10.0.0.1:65536/TCP",
        "NodePort 1/TCP",
        "[::g]:1/TCP",
        "1.1.1.1:1/NO",
    ],
)
def test_keys_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_key(text)


def test_it_may_be_unpacked_by_hand() -> None:
    assert same(bundle.decode(gzip.decompress(bundle.encode(FACTS)), "x"))


def changed(**fields: Any) -> bytes:
    return json.dumps(unpacked(FACTS) | fields).encode()


ENTRY = {"mode": "ipvs", "entries": [{"address": "nonsense"}]}


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "it is empty"),
        (b"hello", "not gzip'd"),
        (b"PK\3\4", "not gzip'd"),
        (b"{}", "its format is another one"),
        (b"[1", "not gzip'd"),
        (b"{" * 100_000, "no JSON object"),
        (bundle.encode(FACTS)[:-40], "cut off"),
        (bundle.encode(FACTS)[:100] + b"\xff" * 30 + bundle.encode(FACTS)[130:], "damaged"),
        (gzip.compress(b"[]", mtime=0), "no JSON object"),
        (gzip.compress(b'{"format": "kube-proxy-nft/migration-facts/v2"}', mtime=0), "has the format v2, and this version reads v1"),
        (gzip.compress(b'{"format": "kube-proxy-nft/migration-facts/v1"}', mtime=0), "missing required field"),
        (changed(dataplanes=[ENTRY]), "'nonsense' is no address of a Service"),
        (changed(dataplanes=[{"mode": "other", "entries": []}]), "Invalid enum value"),
        (changed(listeners=[{"address": "1.2.3.4:5"}]), "no address, port and protocol"),
        (changed(interfaces=[{"name": "x", "addresses": ["eth0"]}]), "no IP address"),
        (changed(objects=5), "objects"),
    ],
)  # fmt: skip
def test_what_is_no_bundle(data: bytes, cause: str) -> None:
    with pytest.raises(SourceError, match=r"^here: ") as caught:
        bundle.decode(data, "here")
    assert cause in str(caught.value)
    assert caught.value.remedy


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from leaves(inner, (*path, key))


PLACES = [path for path in leaves(unpacked(FACTS)) if path]
ANYTHING: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 2**70, 1.5, "", "x", "\ud800", [], {}, [[]], {"a": 1}, "1.2.3.4:5/TCP", "::/x"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PLACES), ANYTHING), min_size=1, max_size=3))
def test_a_bundle_that_somebody_has_edited(edits: list[tuple[tuple[Any, ...], Any]]) -> None:
    """It is read, or refused; nothing else."""
    edited = unpacked(FACTS)
    for path, value in edits:
        place = edited
        with contextlib.suppress(KeyError, IndexError, TypeError):  # an edit before has taken it away
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = copy.deepcopy(value)  # two edits of one would make a circle
    with contextlib.suppress(SourceError):
        assert bundle.encode(bundle.decode(gzip.compress(json.dumps(edited).encode()), "x"))


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    for content in (data, b"\x1f\x8b" + data, gzip.compress(data)):
        with pytest.raises(SourceError):
            bundle.decode(content, "x")


def test_a_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "LARGEST", 1 << 20)
    with pytest.raises(SourceError, match="unpacks to more than 1 MiB"):
        bundle.decode(gzip.compress(bytes(5 << 20)), "x")


def test_a_file_that_is_too_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bundle, "LARGEST_FILE", 1 << 20)
    (tmp_path / "x").write_bytes(bytes(2 << 20))
    with pytest.raises(SourceError, match="larger than 1 MiB"):
        bundle.read(str(tmp_path / "x"))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        bundle.read(str(tmp_path / "x"))
    with pytest.raises(UsageError, match="cannot be written"):
        bundle.write(FACTS, str(tmp_path / "x" / "y"))
    assert list(tmp_path.iterdir()) == []


def test_writing_replaces_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(b"old")
    size = bundle.write(FACTS, str(path))
    assert path.stat().st_size == size and same(bundle.read(str(path)))
    assert list(tmp_path.iterdir()) == [path]


SECRET = "s3cr3t-t0k3n"


def test_objects_are_reduced() -> None:
    """Annotations, labels and the like may hold anything, and a proxy reads none of them."""
    for item in objects():
        meta = item["metadata"]
        meta["annotations"] = {
            "kubectl.kubernetes.io/last-applied-configuration": SECRET,
            "kube-proxy-nft/scheduler": "rr",
        }
        meta["labels"] = meta.get("labels", {}) | {"app": SECRET}
        meta["managedFields"] = meta["ownerReferences"] = [{"manager": SECRET}]
        item.setdefault("spec", {})["selector"] = {"app": SECRET}
        item["spec"]["unknown"] = item["data"] = {"token": SECRET}
        item.setdefault("status", {})["conditions"] = [{"message": SECRET}]
        for one in item.get("endpoints", []):
            one["targetRef"] = {"name": SECRET}
            one["hostname"] = SECRET
        text = bytes(reduced(convert(item["kind"], item))).decode()
        assert SECRET not in text, item["kind"]
        assert '"kube-proxy-nft/scheduler":"rr"' in text
        assert len(text) < len(json.dumps(item)) / 2 or item["kind"] == "EndpointSlice"


def test_a_reduced_object_means_the_same() -> None:
    for item in objects():
        item["metadata"].pop("annotations", None)
        before = convert(item["kind"], item)
        after = msgspec.json.decode(reduced(convert(item["kind"], item)), type=type(before))
        before.metadata.uid = before.metadata.resource_version = ""
        before.metadata.labels = after.metadata.labels
        assert after == before
