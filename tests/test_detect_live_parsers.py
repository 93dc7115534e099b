"""What the detector reads from the kernel, as bytes: recorded, made, damaged."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.detect import interfaces, ipsets, iptables_legacy, ipvs, ipvs_netlink, nft_names
from proxy.detect.evidence import IpvsTable, KubeChains, KubeSets, Place, Unreadable
from proxy.detect.iptables_legacy import IPV4, IPV6, Variant, chains
from proxy.detect.ipvs_servers import VirtualServer, parse, summary
from proxy.detect.kube_chains import classify
from proxy.detect.netlink import TRIES, Netlink, request
from proxy.detect.unreadable import because
from rules.netlink import NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, attribute, nested, u32
from tests.dataplanes import recorded

PLACE = Place("ipvs", "netlink")
GENL = bytes(4)


def service(address: bytes, port: int = 80, scheduler: bytes = b"rr", protocol: int = 6) -> bytes:
    """A reply's body as the kernel lays it out: linux/ip_vs.h."""
    family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
    return GENL + nested(
        1,
        attribute(1, struct.pack("=H", family)),
        attribute(2, struct.pack("=H", protocol)),
        attribute(3, address.ljust(16, b"\0")),
        attribute(4, struct.pack(">H", port)),
        attribute(6, scheduler + b"\0"),
        attribute(7, struct.pack("=II", 0, 0xFFFFFFFF)),
        attribute(8, struct.pack("=I", 0)),
        attribute(9, struct.pack("=I", 0xFFFFFFFF)),
        nested(10, *(attribute(number, bytes(8)) for number in range(1, 11))),
    )


class KernelReplies:
    """In a netlink socket's place: answers each request with what `answer` makes of its sequence number."""

    def __init__(self, answer: Callable[[int], bytes]) -> None:
        self._answer, self._waiting = answer, list[bytes]()
        self.requests: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.requests.append(data)
        self._waiting.append(self._answer(struct.unpack_from("=IHHI", data)[3]))

    def recv(self, _: int) -> bytes:
        if not self._waiting:
            raise TimeoutError
        return self._waiting.pop(0)


def netlink(answer: Callable[[int], bytes]) -> Netlink:
    made = Netlink.__new__(Netlink)
    made._socket = KernelReplies(answer)  # type: ignore[assignment]
    made._sequence, made._disturbed = 0, False
    return made


def reply(kind: int, sequence: int, body: bytes, flags: int = 2) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


def done(sequence: int) -> bytes:
    return reply(NLMSG_DONE, sequence, bytes(4))


# ------------------------------------------------------------------ netlink


def test_a_dump_ends_with_what_ends_it_and_skips_what_is_not_of_it() -> None:
    asker = netlink(lambda n: reply(20, n - 1, b"old!") + reply(20, n, b"one!") + reply(20, n, b"two!") + done(n))
    assert asker.dump(18, b"", bytes) == [b"one!", b"two!"]


def test_a_disturbed_dump_is_read_again_and_then_taken_as_it_is() -> None:
    counts: list[int] = []

    def answer(n: int) -> bytes:
        counts.append(n)
        return reply(20, n, b"%04d" % n, 2 | NLM_F_DUMP_INTR) + done(n)

    assert netlink(answer).dump(18, b"", bytes) == [b"%04d" % TRIES]
    assert len(counts) == TRIES


def test_errors_of_the_kernel_are_errors() -> None:
    refused = netlink(lambda n: reply(NLMSG_ERROR, n, struct.pack("=i", -errno.EPERM) + bytes(16)))
    with pytest.raises(PermissionError):
        refused.dump(18, b"", bytes)


def test_a_kernel_that_says_nothing() -> None:
    with pytest.raises(TimeoutError):
        netlink(lambda n: reply(20, n, b"")).dump(18, b"", bytes)


READERS: list[Callable[[memoryview], Any]] = [
    ipvs_netlink.read_family,
    ipvs_netlink.read_service,
    interfaces.read_index,
    interfaces.read_address,
    nft_names.read_table,
    nft_names.read_chain,
    ipsets.read_name,
    ipsets.read_entries,
    ipsets.count_members,
]


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """Cut off, or with some bytes changed."""

    def change(edits: list[tuple[int, int]]) -> bytes:
        data = bytearray(whole)
        for at, value in edits:
            data[at % len(data)] = value
        return bytes(data)

    edits = st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), min_size=1, max_size=4)
    return st.one_of(st.integers(0, len(whole)).map(lambda n: whole[:n]), edits.map(change))


SERVICE = service(bytes([10, 96, 0, 1]))
SET = (
    bytes(4) + attribute(1, b"\6") + attribute(2, b"KUBE-CLUSTER-IP\0") + nested(7, attribute(24, struct.pack(">I", 9)))
)
CHAIN = bytes(4) + attribute(1, b"nat\0") + attribute(2, bytes(8)) + attribute(3, b"KUBE-SERVICES\0")
ADDRESS = (
    struct.pack("=BBBBI", 2, 32, 0, 0, 7) + attribute(1, bytes([10, 96, 0, 1])) + attribute(2, bytes([10, 96, 0, 1]))
)


@given(st.sampled_from(READERS), st.one_of(st.binary(max_size=64), *map(damaged, (SERVICE, SET, CHAIN, ADDRESS))))
def test_whatever_the_body_of_a_reply_is(read: Callable[[memoryview], Any], body: bytes) -> None:
    try:
        netlink(lambda n: reply(20, n, body) + done(n)).dump(18, b"", read)
    except ValueError:
        pass


@given(st.sampled_from(READERS), damaged(reply(20, 1, SERVICE) + reply(20, 1, CHAIN) + done(1)))
@example(bytes, reply(NLMSG_ERROR, 1, b"\0\0\0\x80"))
@example(bytes, reply(NLMSG_ERROR, 1, b""))
def test_whatever_a_datagram_is(read: Callable[[memoryview], Any], data: bytes) -> None:
    try:
        netlink(lambda _: data).dump(18, b"", read)
    except (ValueError, OSError):
        pass


def test_a_request_begins_with_its_length_and_kind() -> None:
    assert struct.unpack("=IHHII", request(0x601, 0x300, 7, b"body")[:16]) == (20, 0x601, 0x301, 7, 0)


# ------------------------------------------------------------------ IPVS


def test_a_service_and_the_key_that_asks_for_its_destinations() -> None:
    body = service(bytes([10, 96, 0, 10]), port=53, scheduler=b"wlc", protocol=17)
    server, key = ipvs_netlink.read_service(memoryview(body))
    assert server == VirtualServer(bytes([10, 96, 0, 10]), "wlc")
    assert key == attribute(1, struct.pack("=H", 2)) + attribute(2, struct.pack("=H", 17)) + attribute(
        3, bytes([10, 96, 0, 10]).ljust(16, b"\0")
    ) + attribute(4, struct.pack(">H", 53))
    six = socket.inet_pton(socket.AF_INET6, "fd00:10:96::30")
    assert ipvs_netlink.read_service(memoryview(service(six)))[0].address == six


def test_a_firewall_mark_has_no_address() -> None:
    mark = attribute(5, struct.pack("=I", 7))
    body = GENL + nested(1, attribute(1, struct.pack("=H", 2)), mark, attribute(6, b"sh\0"))
    server, key = ipvs_netlink.read_service(memoryview(body))
    assert server == VirtualServer(b"", "sh")
    assert key == attribute(1, struct.pack("=H", 2)) + mark


def test_the_recorded_proc_file_says_what_ipvsadm_says() -> None:
    lines = recorded("ipvs", "ipvsadm-save.txt").splitlines()
    servers = parse(recorded("ipvs", "proc-net-ip_vs.txt").splitlines())
    added = [line.split() for line in lines if line.startswith("-A")]
    assert len(servers) == len(added) == 30
    assert sum(server.destinations for server in servers) == sum(line.startswith("-a") for line in lines) == 55
    assert {server.scheduler for server in servers} == {"rr"}
    hosts = sorted(_packed(words[2].rpartition(":")[0].strip("[]")) for words in added)
    assert sorted(server.address for server in servers) == hosts


def _packed(host: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)


def test_the_recorded_table_in_a_few_numbers() -> None:
    servers = parse(recorded("ipvs", "proc-net-ip_vs.txt").splitlines())
    cluster_ip = bytes([10, 96, 0, 1])
    assert summary(servers, PLACE, {cluster_ip}) == IpvsTable(
        place=PLACE, services=30, destinations=55, schedulers={"rr": 30}, kube=1
    )


def test_marks_schedulers_and_persistence_in_the_proc_file() -> None:
    text = """IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
FWM  00000001 wlc persistent 300 FFFFFFFF
  -> 0A000001:0050      Route   1      0          0
SCTP 0A600001:0050 sh (flag-1)
UDP  0A600001:0035 rr ops
"""
    assert parse(text.splitlines()) == [
        VirtualServer(b"", "wlc", 1),
        VirtualServer(bytes([10, 96, 0, 1]), "sh"),
        VirtualServer(bytes([10, 96, 0, 1]), "rr"),
    ]


@given(
    st.one_of(st.text(), damaged(recorded("ipvs", "proc-net-ip_vs.txt").encode()).map(lambda d: d.decode("latin-1")))
)
def test_whatever_the_proc_file_is(text: str) -> None:
    try:
        parse(text.splitlines())
    except ValueError:
        pass


class Proc:
    """A kernel with IPVS: over netlink, in /proc, or not to be had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, over_netlink: list[VirtualServer] | Exception) -> None:
        def read() -> list[VirtualServer]:
            if isinstance(over_netlink, Exception):
                raise over_netlink
            return over_netlink

        monkeypatch.setattr(ipvs, "is_loaded", lambda: True)
        monkeypatch.setattr(ipvs_netlink, "read", read)
        monkeypatch.setattr(ipvs, "kube_addresses", lambda: {b"\1\2\3\4"})


def test_ipvs_over_netlink(monkeypatch: pytest.MonkeyPatch) -> None:
    Proc(monkeypatch, [VirtualServer(b"\1\2\3\4", "rr", 3), VirtualServer(b"", "wlc", 1)])
    (found,) = ipvs.gather()
    assert found == IpvsTable(place=PLACE, services=2, destinations=4, schedulers={"rr": 1, "wlc": 1}, kube=1)


def test_ipvs_without_a_virtual_server_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Proc(monkeypatch, [])
    assert ipvs.gather() == []


def test_ipvs_from_proc_where_netlink_is_not_permitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    Proc(monkeypatch, PermissionError(errno.EPERM, "no"))
    (tmp_path / "ip_vs").write_text(recorded("ipvs", "proc-net-ip_vs.txt"))
    monkeypatch.setattr(ipvs, "PROC", str(tmp_path / "ip_vs"))
    (found,) = ipvs.gather()
    assert isinstance(found, IpvsTable)
    assert (found.place.name, found.services, found.destinations) == ("/proc/net/ip_vs", 30, 55)


def test_ipvs_that_cannot_be_read_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    Proc(monkeypatch, PermissionError(errno.EPERM, "no"))
    monkeypatch.setattr(ipvs, "PROC", "/proc/nothing")
    (found,) = ipvs.gather()
    assert isinstance(found, Unreadable)
    Proc(monkeypatch, ValueError("a netlink reply cannot be: 3 bytes"))
    (found,) = ipvs.gather()
    assert isinstance(found, Unreadable) and "3 bytes" in found.cause


# ------------------------------------------------------------------ iptables


RETURN = -5  # XT_RETURN, where each chain ends


def rule(variant: Variant, target: bytes, data: bytes = b"", matches: int = 0) -> bytes:
    """An ipt_entry or ip6t_entry: linux/netfilter_ipv4/ip_tables.h."""
    body = struct.pack("=H29sB", 32 + len(data), target, 0) + data
    entry = bytearray(variant.size + matches) + body
    struct.pack_into("=HH", entry, variant.offsets, variant.size + matches, len(entry))
    return bytes(entry)


def table(variant: Variant) -> bytes:
    return b"".join(
        (
            rule(variant, b"", struct.pack("=i4x", -2)),
            rule(variant, b"ERROR", b"KUBE-SERVICES".ljust(32, b"\0")),
            rule(variant, b"KUBE", bytes(8), matches=64),
            rule(variant, b"", struct.pack("=i4x", RETURN)),
            rule(variant, b"ERROR", b"KUBE-SVC-ABCDEFGHIJKLMNOP".ljust(32, b"\0")),
            rule(variant, b"", struct.pack("=i4x", RETURN)),
            rule(variant, b"ERROR", b"ERROR".ljust(32, b"\0")),
        )
    )


@pytest.mark.parametrize("variant", [IPV4, IPV6])
def test_chains_of_the_legacy_variant(variant: Variant) -> None:
    found = list(chains(memoryview(table(variant)), variant))
    assert found == [("KUBE-SERVICES", True), ("KUBE-SVC-ABCDEFGHIJKLMNOP", False), ("ERROR", False)]


@given(st.sampled_from([IPV4, IPV6]), st.data())
def test_whatever_the_legacy_table_is(variant: Variant, data: st.DataObject) -> None:
    entries = data.draw(st.one_of(st.binary(max_size=400), damaged(table(variant))))
    try:
        found = list(chains(memoryview(entries), variant))
    except ValueError:
        return
    assert len(found) <= len(entries) // variant.size


def test_a_legacy_table_that_changes_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def answer(_: int, __: int, option: int, ___: Any) -> None:
        asked.append(option)
        if option == iptables_legacy.GET_ENTRIES:
            raise BlockingIOError(errno.EAGAIN, "again")

    monkeypatch.setattr(iptables_legacy, "_getsockopt", answer)
    with pytest.raises(OSError, match="changed during each"):
        iptables_legacy.read_table(0, IPV4, "nat")
    assert len(asked) == 2 * iptables_legacy.TRIES


def names(mode: str, program: str) -> Iterator[str]:
    for line in recorded(mode, f"{program}-save.txt").splitlines():
        if line.startswith(":"):
            yield line.split()[0][1:]


def used(listed: list[str]) -> list[tuple[str, bool]]:
    return [(name, True) for name in listed]


@pytest.mark.parametrize("mode", ["iptables", "ipvs"])
@pytest.mark.parametrize("program", ["iptables", "ip6tables"])
def test_each_recording_has_the_chains_of_its_mode_and_no_other(mode: str, program: str) -> None:
    listed = list(names(mode, program))
    (found,) = classify(used(listed), PLACE)
    assert found.mode == mode and not found.empty
    assert found.chains == sum(name.startswith("KUBE-") for name in listed)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([], []),
        (["INPUT", "DOCKER", "KUBE-ROUTER-FORWARD", "KUBE-NWPLCY-DEFAULT", "cali-INPUT"], []),
        (["KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"], [("", 3, 0)]),
        (["KUBE-MARK-DROP", "KUBE-MARK-MASQ", "KUBE-POSTROUTING"], [("", 3, 0)]),  # kubelet's until 1.27
        (["KUBE-SERVICES", "KUBE-FORWARD"], [("", 2, 0)]),
        (["KUBE-PROXY-CANARY"], [("iptables", 1, 0)]),
        (["KUBE-SVC-ABCDEFGHIJKLMNOP", "KUBE-SVC-TOOSHORT", "KUBE-SVC-"], [("iptables", 1, 1)]),
        (["KUBE-NODE-PORT", "KUBE-NODEPORTS", "KUBE-SERVICES"], [("iptables", 2, 0), ("ipvs", 2, 0)]),
    ],
)
def test_whose_chains_these_are(listed: list[str], expected: list[tuple[str, int, int]]) -> None:
    assert [(e.mode, e.chains, e.services) for e in classify(used(listed), PLACE)] == expected


SVC, SVC2 = "KUBE-SVC-ABCDEFGHIJKLMNOP", "KUBE-SVC-BBCDEFGHIJKLMNOP"


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([(SVC, False), (SVC2, False)], {"iptables": True}),
        ([(SVC, False), (SVC2, True)], {"iptables": False}),
        ([(SVC, False), ("KUBE-NODEPORTS", True), ("KUBE-FIREWALL", True)], {"iptables": True}),
        ([("KUBE-NODEPORTS", False)], {"iptables": False}),  # no Service's: there is nothing to be empty
        ([("KUBE-NODE-PORT", False), ("KUBE-SERVICES", True)], {"ipvs": True}),
        ([("KUBE-NODE-PORT", False), ("KUBE-LOAD-BALANCER", True)], {"ipvs": False}),
        ([("KUBE-FIREWALL", False)], {"": False}),
        ([(SVC, False), ("KUBE-NODE-PORT", True)], {"iptables": True, "ipvs": False}),
    ],
)
def test_chains_that_lead_nothing_are_empty(listed: list[tuple[str, bool]], expected: dict[str, bool]) -> None:
    assert {e.mode: e.empty for e in classify(listed, PLACE)} == expected


@given(st.lists(st.sampled_from([*names("iptables", "iptables"), *names("ipvs", "iptables")])))
def test_chains_are_counted_for_a_mode_that_has_some_of_its_own(listed: list[str]) -> None:
    found = classify(used(listed), PLACE)
    assert all(isinstance(e, KubeChains) and 0 < e.chains <= len(listed) for e in found)
    assert len({e.mode for e in found}) == len(found)
    assert bool(found) == any(name.startswith("KUBE-") for name in listed)


# ------------------------------------------------------------------ ipsets


def test_recorded_sets_are_kube_proxys() -> None:
    created = [line.split()[1] for line in recorded("ipvs", "ipset-save.txt").splitlines() if line.startswith("create")]
    assert len(created) == 34
    assert all(ipsets.NAMES.fullmatch(name) for name in created)


@pytest.mark.parametrize(
    "name", ["KUBE-SRC-ABCDEFGHIJKLMNOP", "KUBE-DST-ABCDEFGHIJKLMNOP", "KUBE-", "kube-router-svip"]
)
def test_sets_of_others(name: str) -> None:
    assert not ipsets.NAMES.fullmatch(name)


def test_how_many_entries_a_set_has() -> None:
    assert ipsets.read_name(memoryview(SET)) == "KUBE-CLUSTER-IP"
    assert ipsets.read_entries(memoryview(SET)) == 9


@pytest.mark.parametrize("members", [0, 2])
def test_where_a_header_does_not_tell_the_entries_are_counted(monkeypatch: pytest.MonkeyPatch, members: int) -> None:
    """Old kernels leave it out: what is not told is not nothing."""
    body = bytes(4) + attribute(ipsets.ATTR_SETNAME, b"KUBE-CLUSTER-IP\0")
    header = body + nested(ipsets.ATTR_DATA, attribute(26, bytes(4)))
    whole = header + nested(ipsets.ATTR_ADT, *[nested(7, attribute(1, bytes(4)))] * members)

    class OldKernel:
        def __init__(self, _protocol: int) -> None: ...

        def __enter__(self) -> OldKernel:
            return self

        def __exit__(self, *_: object) -> None: ...

        def dump(self, _kind: int, asked: bytes, read: Callable[[memoryview], Any]) -> list[Any]:
            return [read(memoryview(whole if asked.endswith(u32(ipsets.ATTR_FLAGS, 0)) else header))]

    assert ipsets.read_entries(memoryview(header)) is None
    monkeypatch.setattr(ipsets, "Netlink", OldKernel)
    place = Place("ipset", "KUBE-*")
    assert ipsets.gather(lambda *_: "there") == [KubeSets(place=place, sets=1, entries=members)]


# ------------------------------------------------------------------ what could not be read


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (PermissionError(errno.EPERM, "Operation not permitted"), "no permission"),
        (OSError(errno.ENOBUFS, "No buffer space available"), "No buffer space available"),
        (TimeoutError("timed out"), "timed out"),
        (ValueError("17 of 3 bytes"), "17 of 3 bytes"),
    ],
)
def test_what_could_not_be_read_says_why_and_what_to_do(error: OSError | ValueError, cause: str) -> None:
    found = because(PLACE, error)
    assert cause in found.cause
    assert found.remedy
    assert not found.harmless
