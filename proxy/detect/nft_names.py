"""KUBE-* chains of iptables' nft variant, and proxies' nftables tables: names and numbers, no rules.

linux/netfilter/nf_tables.h. Needs CAP_NET_ADMIN. Chains are only listed for a family that has a table of interest; the
kernel then lists those of all its tables.
"""

from __future__ import annotations

import errno
import struct
from typing import Final

from msgspec import Struct

from proxy.detect.evidence import Evidence, KubeTables, Place
from proxy.detect.kernel_support import Support, could_be_there
from proxy.detect.kube_chains import Named, classify
from proxy.detect.netlink import Netlink
from proxy.detect.unreadable import because
from rules.foreign import TABLE_DORMANT
from rules.netlink import GETCHAIN, GETTABLE, NETLINK_NETFILTER, SUBSYSTEM, attributes, read_text
from rules.objects import Family

IPTABLES: Final = ("nat", "filter", "mangle")
OWNERS: Final = ("kube-proxy", "kube-proxy-nft")
TABLE_NAME, TABLE_FLAGS = 1, 2
CHAIN_TABLE, CHAIN_NAME, CHAIN_USE = 1, 3, 6
ANY_FAMILY: Final = 0

_NFGENMSG = struct.Struct(">BBH")
_NOT_THERE: Final = (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EINVAL, errno.EOPNOTSUPP)


class _Table(Struct):
    dormant: bool
    chains: list[Named]


def gather(support: Support) -> list[Evidence]:
    """Both families."""
    if not could_be_there(support("nf_tables", "CONFIG_NF_TABLES")):
        return []
    try:
        with Netlink(NETLINK_NETFILTER) as netlink:
            found: list[Evidence] = []
            for family, tables in _read(netlink).items():
                for owner in OWNERS:
                    if table := tables.get(owner):
                        place = Place("nftables", f"{family.nft} {owner}")
                        size, dormant = len(table.chains), table.dormant
                        found.append(KubeTables(place=place, owner=owner, chains=size, dormant=dormant))
                of_iptables = [table for name in IPTABLES if (table := tables.get(name))]
                chains = [(name, is_used and not t.dormant) for t in of_iptables for name, is_used in t.chains]
                found += classify(chains, Place("iptables", "nft", family.nft))
            return found
    except OSError as error:
        return [] if error.errno in _NOT_THERE else [because(Place("nftables", "all"), error)]
    except ValueError as error:
        return [because(Place("nftables", "all"), error)]


def _read(netlink: Netlink) -> dict[Family, dict[str, _Table]]:
    """The tables of interest, by name."""
    kind = SUBSYSTEM << 8 | GETTABLE
    tables = netlink.dump(kind, _NFGENMSG.pack(ANY_FAMILY, 0, 0), read_table)
    found: dict[Family, dict[str, _Table]] = {}
    for family in Family:
        of_interest = {
            name: _Table(dormant, [])
            for number, name, dormant in tables
            if number == family and name in IPTABLES + OWNERS
        }
        if of_interest:
            kind = SUBSYSTEM << 8 | GETCHAIN
            for table, chain, is_used in netlink.dump(kind, _NFGENMSG.pack(family, 0, 0), read_chain):
                if table in of_interest:
                    of_interest[table].chains.append((chain, is_used))
            found[family] = of_interest
    return found


def read_table(body: memoryview) -> tuple[int, str, bool]:
    """Number of the family, name, and whether it is dormant. Raises ValueError, LookupError, struct.error."""
    family, _, _ = _NFGENMSG.unpack_from(body)
    parts = dict(attributes(body[_NFGENMSG.size :]))
    return family, read_text(parts[TABLE_NAME]), bool(int.from_bytes(parts.get(TABLE_FLAGS, b"")) & TABLE_DORMANT)


def read_chain(body: memoryview) -> tuple[str, str, bool]:
    """Table, name, and whether it has a rule or is jumped to. Raises ValueError, LookupError."""
    table = name = ""
    for number, value in attributes(body[_NFGENMSG.size :]):
        if number == CHAIN_TABLE:
            table = read_text(value)
        elif number == CHAIN_NAME:
            name = read_text(value)
        elif number == CHAIN_USE:
            return table, name, any(value)
    if not name:
        raise LookupError("a chain without a name")
    return table, name, True
