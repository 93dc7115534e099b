"""kube-proxy's nftables mode -> what it does with each address and port. Over netlink: nft is not run, and no other
table is listed."""

from __future__ import annotations

import errno
from typing import Final

from proxy.detect.evidence import Place
from proxy.detect.kernel_support import KernelFiles, Support, could_be_there
from proxy.detect.unreadable import because
from proxy.migrate.entries import Beside, Dataplane
from proxy.migrate.nft_family import NftEntries, read_family
from proxy.migrate.nft_table import NAME, NftTable, read_table
from proxy.migrate.notes import Notes
from proxy.unread import Unread
from rules.foreign import Changed, Reader
from rules.netlink_socket import DAMAGED
from rules.objects import Family

REMEDY: Final = "look at it with nft list table ip kube-proxy (or ip6); restarting kube-proxy writes its rules anew"
NO_NFTABLES: Final = (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.EINVAL, errno.EOPNOTSUPP)


def read(support: Support | None = None) -> Dataplane | None:
    """Of this network namespace. support: what the kernel has, so that nothing is asked that would load a module.

    None: there are no such tables. Without entries: there may be, and `unread` says what stood in the way.
    """
    has = support or KernelFiles().presence
    if not could_be_there(has("nf_tables", "CONFIG_NF_TABLES")):
        return None
    notes = Notes(REMEDY)
    found: dict[Family, NftEntries] = {}
    unread: list[Unread] = []
    try:
        with Reader() as reader:
            for family in Family:
                try:
                    table = read_table(reader, family)
                except Changed:
                    unread.append(Unread(_what(family), "it changed during each of several reads", "try again"))
                    continue
                except DAMAGED as error:
                    unread.append(Unread(_what(family), f"the kernel's reply cannot be understood ({error})"))
                    break  # the rest of it is still to come on this socket
                if table is not None:
                    found[family] = read_family(table, notes)
    except OSError as error:
        if error.errno not in NO_NFTABLES or found:
            said = because(Place("nftables", NAME), error)
            unread.append(Unread(f"nftables tables {NAME}", said.cause, said.remedy))
    if not found and not unread:
        return None
    return _whole(found, (*unread, *notes.unread()), notes.remarks())


def of_tables(*tables: NftTable) -> Dataplane:
    """From tables that were read before."""
    notes = Notes(REMEDY)
    found = {table.family: read_family(table, notes) for table in tables}
    return _whole(found, notes.unread(), notes.remarks())


def _whole(found: dict[Family, NftEntries], unread: tuple[Unread, ...], remarks: tuple[Unread, ...]) -> Dataplane:
    addresses: set[bytes] = set()
    for family, part in found.items():
        addresses |= {bytes(family.address_size)} if part.nodeport_addresses is None else set(part.nodeport_addresses)
    everywhere = all(part.nodeport_addresses is None for part in found.values())
    return Dataplane(
        "nftables",
        tuple([entry for part in found.values() for entry in part.entries]),
        None if everywhere else tuple(sorted(addresses)),
        next((part.mark for part in found.values() if part.mark), 0),
        "netlink",
        unread,
        remarks=remarks,
        beside=_beside(found),
    )


def _beside(found: dict[Family, NftEntries]) -> Beside:
    hairpins = [part.hairpins for part in found.values() if part.hairpins is not None]
    dropped = [part.dropped for part in found.values() if part.dropped is not None]
    return Beside(
        pods={family.nft: part.pods for family, part in found.items() if part.pods is not None},
        hairpins=frozenset().union(*hairpins) if hairpins else None,
        dropped=tuple([one for part in dropped for one in part]) if dropped else None,
    )


def _what(family: Family) -> str:
    return f"nftables table {family.nft} {NAME}"
