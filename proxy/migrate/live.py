"""The live dataplanes of this network namespace: what kube-proxy's rules do, whatever its mode."""

from __future__ import annotations

from collections.abc import Callable

from proxy.migrate import iptables_entries, ipvs_entries, nft_entries
from proxy.migrate.entries import Dataplane, Unread
from proxy.migrate.iptables_entries import Seen
from proxy.migrate.iptables_programs import ProgramError
from rules.errors import KernelUnreachable

Read = Callable[[], Dataplane | None]


def readers(seen: Seen | None = None) -> tuple[tuple[str, Read], ...]:
    """Name for people -> what reads the entries of one mode. seen: hears of what iptables-save has printed."""
    return (
        ("IPVS", ipvs_entries.read),
        ("kube-proxy's iptables rules", lambda: iptables_entries.read(seen)),
        ("kube-proxy's nftables tables", nft_entries.read),
    )


def dataplanes(progress: Callable[[str, int], None], seen: Seen | None = None) -> tuple[list[Dataplane], list[Unread]]:
    """Of all modes whose rules are in the kernel."""
    found: list[Dataplane] = []
    unread: list[Unread] = []
    for what, read in readers(seen):
        progress(what, 0)
        try:
            dataplane = read()
        except (OSError, ValueError, KernelUnreachable, ProgramError) as error:
            unread.append(Unread(what, str(error), "run it as root, or report this bug"))
            continue
        if dataplane is not None:
            found.append(dataplane)
            progress(what, len(dataplane.entries))
    return found, unread
