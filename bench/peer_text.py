"""What kube-proxy's modes would send for one changed endpoint, taken from what they would send for all: text for nft and
iptables-restore."""

from __future__ import annotations

from bench.dataplane_peers import iptables, nftables
from bench.dataplane_services import Port

_OF_A_SERVICE = ("KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-")


def nftables_change(port: Port) -> str:
    """The service port's own chain anew: all that nft is told of it. (kube-proxy lists its table besides.)"""
    [chain] = [line for line in nftables([port]).splitlines() if line.startswith("chain service-") and " dnat " in line]
    name, _, rule = chain.removeprefix("chain ").partition(" { ")
    rule = rule.removesuffix("}").strip().removesuffix(";")
    return f"flush chain ip kube-proxy {name}\nadd rule ip kube-proxy {name} {rule}\n"


class IptablesChanges:
    """`text`: of all Services, as iptables-restore reads it."""

    def __init__(self, text: str) -> None:
        self._filter, nat = _tables(text)
        self._chains = [line for line in nat if line.startswith(":KUBE-") and not _of_a_service(line)]
        self._shared = [line for line in nat if line.startswith("-A KUBE-") and not _of_a_service(line)]

    def change(self, port: Port) -> str:
        """For iptables-restore --noflush: the chains that all Services share, in full, with a rule for every Service, and those of
        this one. It is what kube-proxy's partial sync writes."""
        own = [line for line in _tables(iptables([port]))[1] if _of_a_service(line)]
        chains = [line for line in own if line.startswith(":")]
        rules = [line for line in own if not line.startswith(":")]
        shared = [line for line in self._filter if line.startswith((":KUBE-", "-A KUBE-"))]
        return "\n".join(
            ["*filter", *shared, "COMMIT", "*nat", *self._chains, *chains, *rules, *self._shared, "COMMIT", ""]
        )


def _tables(text: str) -> tuple[list[str], list[str]]:
    """The lines of the tables filter and nat."""
    first, _, second = text.partition("*nat\n")
    return first.splitlines(), second.splitlines()


def _of_a_service(line: str) -> bool:
    """Whether it declares or fills a chain of one Service."""
    return line.removeprefix(":").removeprefix("-A ").startswith(_OF_A_SERVICE)
