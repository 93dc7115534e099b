"""`trace` with real packets: what it shows is what happened, and nothing stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
from typing import Final

import pytest
from msgspec.structs import replace

from proxy.addresses import parse_address
from proxy.errors import UsageError
from proxy.trace.command import journeys, read_target
from proxy.trace.words import describe
from rules.diff import scratch
from rules.elements import ServicePort, endpoint, service_key
from rules.expressions import (
    Bitwise,
    Compare,
    Conntrack,
    Expression,
    Immediate,
    Lookup,
    Meta,
    Payload,
    Verdict,
)
from rules.layout import LAYOUTS, Options
from rules.objects import Family
from rules.tables import create
from rules.trace import Event, Header, Wanted
from rules.trace_socket import TraceSocket
from tests.dataplanes import inside
from tests.netns import Namespace

TRACE: Final = (sys.executable, "-m", "proxy.cli", "trace")
CONNECT: Final = """
import socket, sys
server = socket.create_server(("", 8080))
with socket.socket() as client:
    client.settimeout(0.3)
    try:
        client.connect((sys.argv[1], int(sys.argv[2])))
    except OSError:
        pass
"""


@pytest.fixture
def served(namespace: Namespace) -> Namespace:
    """10.96.1.1:80 with one endpoint, and a Service without any."""
    ports = [
        ServicePort(
            service_key(parse_address("10.96.1.1"), 6, 80), "default/web:http", (endpoint(b"\x0b\0\0\1", 8080),)
        ),
        ServicePort(service_key(parse_address("10.96.1.2"), 6, 80), "default/none:http"),
    ]
    namespace.kernel.commit(create(LAYOUTS[Family.IPV4], Options(), ()))
    namespace.kernel.commit(scratch(Family.IPV4, ports).operations)
    for words in (
        "link set lo up",
        "addr add 10.244.0.2/32 dev lo",
        "route add local 11.0.0.0/8 dev lo",
        "route add 10.96.0.0/12 dev lo",
    ):
        assert namespace.run("ip", *words.split()).returncode == 0
    return namespace


class Tracing:
    """A trace that runs; it listens when this is made."""

    def __init__(self, namespace: Namespace, *arguments: str) -> None:
        path = f"/proc/{os.getpid()}/fd/{namespace.descriptor}"
        command = ("nsenter", f"--net={path}", *TRACE, *arguments)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        assert "waiting for connections" in self.process.stderr.readline()

    def end(self) -> str:
        said, errors = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, errors
        return said


def tables(namespace: Namespace) -> str:
    return namespace.nft("list", "tables")


@pytest.mark.root
def test_a_connection_that_is_led_to_an_endpoint(served: Namespace) -> None:
    tracing = Tracing(served, "10.96.1.1:80", "-o", "json")
    assert "trace" in tables(served)
    served.run(sys.executable, "-c", CONNECT, "10.96.1.1", "80")
    one = json.loads(tracing.end())
    assert (one["target"], one["ledTo"], one["droppedBy"]) == ("10.96.1.1:80/TCP", "11.0.0.1:8080", "")
    assert one["source"].startswith("10.244.0.2:") and one["goesOut"] == "lo"
    rules = [(step["chain"], step["rule"]) for step in one["steps"]]
    assert rules[0][0] == "output" and "map @cluster-ip-ports" in rules[0][1]
    assert rules.index(("cluster-ip-port", "meta priority vmap @pick-by-number")) < len(rules) - 1
    [drawn] = [rule for chain, rule in rules if chain == "pick-1"]
    assert drawn.startswith("set meta priority to 0x0 ip daddr") and drawn.endswith("map @endpoints dnat")
    assert "trace" not in tables(served)


@pytest.mark.root
@pytest.mark.parametrize("way", ["v0", "br0"])
def test_an_endpoint_on_this_machine_itself_is_named(served: Namespace, way: str) -> None:
    """Its packets pass no hook at which anybody else would see their new address. Behind a bridge that asks IP's hooks
    they go on under another number: by default, where the kernel has br_netfilter."""
    outside = Namespace()
    try:
        there = f"/proc/{os.getpid()}/fd/{outside.descriptor}"
        bridge = ("link add br0 type bridge forward_delay 0", "link set v0 master br0", "link set br0 up")
        for place, words in (
            (served, f"link add v0 type veth peer name v1 netns {there}"),
            *((served, words) for words in bridge if way == "br0"),
            (served, f"addr add 192.0.2.2/24 dev {way}"),
            (served, "link set v0 up"),
            (outside, "addr add 192.0.2.1/24 dev v1"),
            (outside, "link set v1 up"),
            (outside, "route add default via 192.0.2.2"),
        ):
            assert place.run("ip", *words.split()).returncode == 0, words
        tracing = Tracing(served, "10.96.1.1:80")
        outside.run(sys.executable, "-c", CONNECT, "10.96.1.1", "80")
        said = tracing.end()
    finally:
        outside.close()
    assert f"-> 10.96.1.1:80/TCP, in through {way}\n" in said and "  led to 11.0.0.1:8080\n" in said
    assert "kube-proxy-nft-trace-" not in said


def test_a_packet_that_is_led_elsewhere_may_get_another_number() -> None:
    def begins(number: int, destination: str, port: int, source_port: int = 40000) -> Event:
        header = Header(parse_address("10.244.0.2"), source_port, parse_address(destination), port, 6)
        return Event(number, 2, "filter", "some", "policy", "accept", header=header)

    led = [
        begins(1, "10.96.1.1", 80),
        begins(2, "11.0.0.1", 8080),
        replace(begins(2, "11.0.0.1", 8080), verdict="drop"),
    ]
    others = [begins(3, "10.96.1.1", 80), begins(4, "10.96.1.1", 80, 40001)]
    found = list(journeys(iter([*led, *others]), lambda event: ""))
    assert [(one.source, len(one.steps), one.led_to, one.dropped_by) for one in found] == [
        ("10.244.0.2:40000", 3, "", "ip filter some"),
        ("10.244.0.2:40000", 1, "10.96.1.1:80", ""),
        ("10.244.0.2:40001", 1, "10.96.1.1:80", ""),
    ]


@pytest.mark.root
def test_the_end_of_a_chain_is_no_rule(served: Namespace) -> None:
    tracing = Tracing(served, "10.96.1.2:80")
    served.run(sys.executable, "-c", CONNECT, "10.96.1.2", "80")
    said = tracing.end()
    assert "jump pick-special" in said and "rule 0" not in said


def test_networks_are_named() -> None:
    is_pod = (Payload(1, 12, 2), Compare(Compare.EQUAL, b"\x0a\xf4"), Immediate((Verdict.RETURN, "")))
    assert describe(is_pod) == "ip saddr == 10.244.0.0/16 return"
    assert describe((Payload(1, 8, 8), Compare(Compare.UNEQUAL, b"\xfd" + bytes(7)))) == "ip6 saddr != fd00::/64"
    assert describe((Payload(1, 12, 4), Compare(Compare.EQUAL, b"\x0a\xf4\0\1"))) == "ip saddr == 10.244.0.1"
    assert describe((Payload(1, 1, 1), Compare(Compare.EQUAL, b"\0"))) == "a part of the packet == 0x00"


MARKS: Final = re.compile(r"(?:meta|ct) mark (?:set (?:meta|ct) mark )?[&|^=!]+ 0x\w+(?: [!=]= 0x\w+)?")


@pytest.mark.root
def test_marks_are_compared_and_set_as_nft_writes_it(served: Namespace) -> None:
    listed = served.nft("--handle", "list", "table", "ip", "kube-proxy-nft").splitlines()
    wanted = {int(line.rpartition("# handle ")[2]): MARKS.findall(line) for line in listed if " mark " in line}

    def read() -> dict[tuple[str, int], tuple[Expression, ...]]:
        with TraceSocket() as trace:
            return trace.rules(LAYOUTS[Family.IPV4].table)

    said = {handle: describe(rule) for (_, handle), rule in inside(served, read).items()}
    assert {handle: MARKS.findall(words) for handle, words in said.items() if " mark " in words} == wanted
    assert ["ct mark & 0x00004000 != 0x00000000", "ct mark set ct mark ^ 0x00004000"] in [
        w[:2] for w in wanted.values()
    ]
    assert any("ct status dnat ct mark" in words for words in said.values())


def test_what_is_compared_in_part() -> None:
    mark, status, priority = (
        Conntrack(Conntrack.MARK, register=1),
        Conntrack(Conntrack.STATUS, register=1),
        Meta(Meta.PRIORITY, register=1),
    )

    def bits(mask: int, xor: int = 0) -> Bitwise:
        return Bitwise(struct.pack("=I", mask), struct.pack("=I", xor), 4)

    def equals(number: int) -> Compare:
        return Compare(Compare.EQUAL, struct.pack("=I", number))

    assert describe((mark, bits(0xFF00), equals(0x100))) == "ct mark & 0x0000ff00 == 0x00000100"
    assert describe((mark, bits(0xF, 1), equals(2))) == "ct mark & 0x0000000f ^ 0x00000001 == 0x00000002"
    assert describe((mark, equals(0x2A))) == "ct mark == 0x0000002a"
    assert describe((priority, bits(0xFFFC0000), equals(0x4B500000))) == "meta priority & 0xfffc0000 == 0x4b500000"
    assert describe((status, bits(0x20), Compare(Compare.UNEQUAL, bytes(4)))) == "ct status dnat"
    assert describe((status, bits(0x10), Compare(Compare.UNEQUAL, bytes(4)))) == "ct status & 0x00000010 != 0x00000000"
    assert (
        describe((mark, bits(0xFF), Lookup("some"), mark, equals(1)))
        == "ct mark & 0x000000ff @some ct mark == 0x00000001"
    )
    network = Payload(1, 12, 4), Bitwise(b"\xff\xf0\0\0", bytes(4), 4), Compare(Compare.EQUAL, b"\x0a\xf0\0\0")
    assert describe(network) == "ip saddr == 10.240.0.0/12"


@pytest.mark.root
def test_refusals_and_other_tables_show(served: Namespace) -> None:
    tracing = Tracing(served, "10.96.1.2:80")
    served.run(sys.executable, "-c", CONNECT, "10.96.1.2", "80")
    said = tracing.end()
    assert "reject with tcp reset" in said and "dropped by ip kube-proxy-nft refuse" in said
    served.nft(
        "-f",
        "-",
        stdin="""table ip wall { chain out {
type filter hook output priority 0; policy accept;
ip daddr 11.0.0.1 drop
}
}""",
    )
    tracing = Tracing(served, "10.96.1.1:80", "--from", "10.244.0.2")
    served.run(sys.executable, "-c", CONNECT, "10.96.1.1", "80")
    said = tracing.end()
    assert "table ip wall" in said and "dropped by ip wall out" in said


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_behind_however_it_ends(served: Namespace, number: signal.Signals) -> None:
    before = served.nft("list", "ruleset")
    tracing = Tracing(served, "10.96.1.1:80")
    assert served.nft("list", "ruleset") != before
    tracing.process.send_signal(number)
    tracing.process.communicate(timeout=30)
    assert tracing.process.returncode == (0 if number != signal.SIGKILL else -number)
    assert served.nft("list", "ruleset") == before


@pytest.mark.root
def test_only_who_was_asked_for(served: Namespace) -> None:
    tracing = Tracing(served, "10.96.1.1:80", "--from", "10.9.9.9", "--seconds", "1")
    served.run(sys.executable, "-c", CONNECT, "10.96.1.1", "80")
    assert tracing.end() == ""


@pytest.mark.parametrize(
    ("target", "source", "wanted"),
    [
        ("10.96.0.10:53/udp", None, Wanted(Family.IPV4, b"\x0a\x60\x00\x0a", 17, 53)),
        (
            "[fd00::a]:443",
            "fd00::1",
            Wanted(Family.IPV6, b"\xfd" + bytes(14) + b"\x0a", 6, 443, b"\xfd" + bytes(14) + b"\1"),
        ),
    ],
)
def test_targets(target: str, source: str | None, wanted: Wanted) -> None:
    assert read_target(target, source) == wanted


@pytest.mark.parametrize(
    ("target", "source"),
    [
        ("10.96.0.10", None),
        ("10.96.0.10:0", None),
        ("10.96.0.10:99999", None),
        ("web:80", None),
        ("10.96.0.10:80", "fd00::1"),
    ],
)
def test_targets_that_are_none(target: str, source: str | None) -> None:
    with pytest.raises(UsageError):
        read_target(target, source)
