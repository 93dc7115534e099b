"""KUBE-* chains of iptables' nft variant, and proxies' nftables tables: names and numbers, no rules.

linux/netfilter/nf_tables.h. Needs CAP_NET_ADMIN. Chains are only listed for a family that has a table of interest; the
kernel then lists those of all its tables.
"""

from __future__ import annotations

import errno
import struct
from typing import Final

from proxy.detect.evidence import Evidence, KubeTables, Place
from proxy.detect.kernel_support import Support, could_be_there
from proxy.detect.kube_chains import classify
from proxy.detect.netlink import Netlink
from proxy.detect.unreadable import because
from rules.netlink import GETCHAIN, GETTABLE, NETLINK_NETFILTER, SUBSYSTEM, attributes
from rules.objects import Family

IPTABLES: Final = ("nat", "filter", "mangle")
OWNERS: Final = ("kube-proxy", "kube-proxy-nft")
TABLE_NAME: Final = 1
CHAIN_TABLE, CHAIN_NAME = 1, 3
ANY_FAMILY: Final = 0

_NFGENMSG = struct.Struct(">BBH")
_NOT_THERE: Final = (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EINVAL, errno.EOPNOTSUPP)

Chains = dict[str, list[str]]
"""Table -> names of its chains."""


def gather(support: Support) -> list[Evidence]:
    """Both families."""
    if not could_be_there(support("nf_tables", "CONFIG_NF_TABLES")):
        return []
    try:
        with Netlink(NETLINK_NETFILTER) as netlink:
            found: list[Evidence] = []
            for family, tables in _read(netlink).items():
                for owner in OWNERS:
                    if owner in tables:
                        place = Place("nftables", f"{family.nft} {owner}")
                        found.append(KubeTables(place=place, owner=owner, chains=len(tables[owner])))
                names = [name for table in IPTABLES for name in tables.get(table, ())]
                found += classify(names, Place("iptables", "nft", family.nft))
            return found
    except OSError as error:
        return [] if error.errno in _NOT_THERE else [because(Place("nftables", "all"), error)]
    except ValueError as error:
        return [because(Place("nftables", "all"), error)]


def _read(netlink: Netlink) -> dict[Family, Chains]:
    kind = SUBSYSTEM << 8 | GETTABLE
    tables = netlink.dump(kind, _NFGENMSG.pack(ANY_FAMILY, 0, 0), read_table)
    found: dict[Family, Chains] = {}
    for family in Family:
        of_interest: Chains = {name: [] for number, name in tables if number == family and name in IPTABLES + OWNERS}
        if of_interest:
            kind = SUBSYSTEM << 8 | GETCHAIN
            for table, chain in netlink.dump(kind, _NFGENMSG.pack(family, 0, 0), read_chain):
                if table in of_interest:
                    of_interest[table].append(chain)
            found[family] = of_interest
    return found


def read_table(body: memoryview) -> tuple[int, str]:
    """Number of the family, and name. Raises ValueError, LookupError, struct.error."""
    family, _, _ = _NFGENMSG.unpack_from(body)
    return family, _text(dict(attributes(body[_NFGENMSG.size :]))[TABLE_NAME])


def read_chain(body: memoryview) -> tuple[str, str]:
    """Table and name. Raises ValueError, LookupError."""
    table = ""
    for number, value in attributes(body[_NFGENMSG.size :]):
        if number == CHAIN_TABLE:
            table = _text(value)
        elif number == CHAIN_NAME:
            return table, _text(value)
    raise LookupError("a chain without a name")


def _text(value: memoryview) -> str:
    return bytes(value).rstrip(b"\0").decode(errors="replace")
