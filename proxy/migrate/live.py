"""The live dataplanes of this network namespace: what kube-proxy's rules do, whatever its mode."""

from __future__ import annotations

import threading
from collections.abc import Callable

from proxy.detect.kernel_support import KernelFiles
from proxy.migrate import base_chains, chain_places, iptables_entries, ipvs_entries, nft_entries
from proxy.migrate.entries import Dataplane
from proxy.migrate.facts import BaseChain
from proxy.migrate.iptables_entries import Seen
from proxy.migrate.iptables_programs import Patience, ProgramError
from proxy.migrate.others import Others
from proxy.migrate.proof import missing_features
from proxy.unread import Unread
from rules.errors import KernelUnreachable

Read = Callable[[], Dataplane | None]


def readers(seen: Seen | None = None, patience: Patience | None = None) -> tuple[tuple[str, Read], ...]:
    """Name for people -> what reads the entries of one mode. seen: hears of what iptables-save has printed."""
    return (
        ("IPVS", ipvs_entries.read),
        ("kube-proxy's iptables rules", lambda: iptables_entries.read(seen, patience)),
        ("kube-proxy's nftables tables", nft_entries.read),
    )


class Look:
    """All that takes long on the node itself, in a thread: programs that list rules run while an API server is asked.
    dataplanes: of all modes whose rules are in the kernel. chains: base chains. features: as proof.missing_features gives
    them."""

    def __init__(self) -> None:
        self.dataplanes: list[Dataplane] = []
        self.unread: list[Unread] = []
        self.others = Others()
        self.chains: tuple[BaseChain, ...] = ()
        self.features: tuple[str, ...] = ()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)
        self._thread.start()  # in the network namespace of the calling thread

    def wait(self) -> None:
        """Until it has all. Raises what must not happen."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self.features, unread = missing_features()
            self.unread += unread
            patience = Patience()
            for what, read in readers(self.others.take, patience):
                self._read(what, read)
            known = {family.nft for variant, family in self.others.seen if variant == "legacy"}
            self.chains, unread = base_chains.read(KernelFiles().presence, known)
            self.chains += tuple(self.others.chains)
            self.unread += unread
            rest = self.others.read_rest(self.chains, patience)
            self.dataplanes = [
                self.others.with_chains(one, is_all=not rest and not unread) if one.mode == "ipvs" else one
                for one in self.dataplanes
            ]
            self.dataplanes = [chain_places.judged(one, self.chains) for one in self.dataplanes]
            self.unread += rest
        except BaseException as error:
            self._failure = error

    def _read(self, what: str, read: Read) -> None:
        try:
            dataplane = read()
        except (OSError, ValueError, KernelUnreachable, ProgramError) as error:
            self.unread.append(Unread(what, str(error), "run it as root, or report this bug"))
            return
        if dataplane is not None:
            self.dataplanes.append(dataplane)
