"""What the detector asks the kernel, with damaged answers."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Final

from proxy.detect import interfaces, ipsets, ipvs_netlink, nft_names
from proxy.detect.iptables_legacy import IPV4, IPV6, Variant, chains
from proxy.detect.ipvs_servers import parse as parse_proc
from proxy.detect.netlink import Netlink
from rules.netlink import attribute, nested
from tests.fuzz import attributes, corpus
from tests.fuzz.corpus import SEPARATOR, replies
from tests.fuzz.hunt import Target
from tests.fuzz.on_netlink import NFT, ROUTE, Replay


def _netlink(data: bytes) -> Netlink:
    made = Netlink.__new__(Netlink)
    made._socket, made._sequence, made._disturbed = Replay(data.split(SEPARATOR)), 0, False  # type: ignore[assignment]
    return made


def _check_netlink(data: bytes) -> None:
    """Netlink raises OSError and ValueError, whatever there is to read."""
    for read in (
        ipsets.read_name,
        ipsets.read_entries,
        ipsets.count_members,
        interfaces.read_index,
        interfaces.read_address,
        ipvs_netlink.read_family,
        ipvs_netlink.read_service,
        nft_names.read_chain,
        nft_names.read_table,
    ):
        for ask in (Netlink.dump, Netlink.get):
            with suppress(OSError, ValueError):
                ask(_netlink(data), 0, b"", read)


def _asked() -> list[bytes]:
    whole = [corpus.recording(name) for name in ("ipsets", "interfaces")]
    single = [data for name in ("ipsets", "interfaces", "nft-names", "nftables") for data in replies(name)[:20]]
    service = nested(
        1,
        attribute(1, struct.pack("=H", 2)),
        attribute(2, struct.pack("=H", 6)),
        attribute(3, bytes([10, 96, 0, 1]).ljust(16, b"\0")),
        attribute(4, struct.pack(">H", 80)),
        attribute(6, b"rr\0"),
    )
    done = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)
    return [*whole, *single, struct.pack("=IHHII", 20 + len(service), 20, 2, 1, 0) + bytes(4) + service + done]


def _check_legacy(data: bytes) -> None:
    for variant in (IPV4, IPV6):
        found = _legacy(memoryview(data), variant)
        assert len(found) <= len(data) // variant.size


def _legacy(data: memoryview, variant: Variant) -> list[str]:
    found = []
    with suppress(ValueError):
        for name, _ in chains(data, variant):
            found.append(name)
    return found


def _check_proc(data: bytes) -> None:
    with suppress(ValueError):
        servers = parse_proc(data.decode(errors="replace").splitlines())
        assert len(servers) <= data.count(b"\n") + data.count(b"\r") + len(data)


PROC: Final = b"""IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A601E02:0050 rr
  -> 0AF40002:1F90      Masq    1      0          0
UDP  [fd00:0010:0096:0000:0000:0000:0000:0030]:0035 rr persistent 10800
FWM  00000001 wlc
"""

_LINK: Final = attributes.mutation(16)
_TOKENS: Final = (SEPARATOR, b"\x14\0\0\0\3\0\2\0\0\0\0\0\0\0\0\0\0\0\0\0", b"\x24\0\0\0\2\0\0\1")


def _tables() -> list[bytes]:
    return [corpus.recording("iptables-legacy"), corpus.recording("iptables-legacy-6")]


TARGETS: Final = (
    Target("netlink", _asked, _check_netlink, _TOKENS, (NFT, ROUTE, _LINK), 500),
    Target("iptables-legacy", _tables, _check_legacy, (b"ERROR\0",), (), 2000),
    Target("ipvs-proc", lambda: [PROC], _check_proc, (b"->", b"TCP", b"FWM", b":", b"[", b"]", b"\n"), (), 1000),
)
