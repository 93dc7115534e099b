"""Of each of kube-proxy's recorded rules: if it alone is gone, the report is another one; but for those that change nothing
that both proxies do."""

from __future__ import annotations

import re
from collections.abc import Callable

from proxy.migrate import nft_entries
from proxy.migrate.facts import NodeFacts
from proxy.migrate.judge import report
from proxy.migrate.report import Proof, Report
from tests.dataplanes import inside, needs, needs_root, recorded
from tests.migrate_facts import facts, recorded_facts, recorded_interfaces, recorded_objects, recorded_texts
from tests.netns import Namespace

NO_LOSS_IN_IPTABLES = (
    r"-j KUBE-FIREWALL$|-A KUBE-FIREWALL",  # kubelet's, which stays
    "--ctstate INVALID .*-j DROP$",
    "will be dropped by KUBE-PROXY-FIREWALL",  # a comment alone
    "--nfacct-name  localhost_nps_accepted_pkts",  # counts; the rule behind it leads
    "-A KUBE-POSTROUTING -j MARK",
)
NO_LOSS_IN_NFTABLES = (
    "ct state new jump service-endpoints-check",  # of what comes to the node itself
    "comment|size ",
)
Told = tuple[object, ...]


def told(made: Report) -> Told:
    entries = [(entry.address, entry.result) for row in made.services for entry in row.entries]
    return [(one.check, one.title, one.objects) for one in made.findings], entries, len(made.gaps)


def silent(lines: list[str], wanted: str, of: Callable[[str], Report]) -> list[str]:
    """Those lines with the pattern whose loss tells nothing. of: the report on a text."""
    whole = told(of("\n".join(lines) + "\n"))
    found = []
    for number, line in enumerate(lines):
        if re.search(wanted, line) and told(of("\n".join(lines[:number] + lines[number + 1 :]) + "\n")) == whole:
            found.append(line.strip())
    return found


def test_of_iptables() -> None:
    text, other = recorded_texts("iptables")

    def of(changed: str) -> Report:
        return report(recorded_facts("iptables", texts=(changed, other)), Proof("accepted"))

    found = silent(text.splitlines(), " -A ", of)
    assert [line for line in found if not any(re.search(usual, line) for usual in NO_LOSS_IN_IPTABLES)] == []
    assert found, "so that the exceptions mean something"


@needs_root
@needs("nft")
def test_of_nftables(namespace: Namespace) -> None:
    text = recorded("nftables", "nft-ruleset.txt")
    ip4, _, ip6 = text.partition("table ip6 kube-proxy")

    def of(changed: str) -> Report:
        namespace.nft("-f", "-", stdin=f"flush ruleset\n{changed}table ip6 kube-proxy{ip6}")
        here = NodeFacts(interfaces=recorded_interfaces("nftables"))
        made = facts(*recorded_objects(), node=None, mode="nftables", here=here)
        made.dataplanes = tuple(filter(None, [inside(namespace, nft_entries.read)]))
        return report(made, Proof("accepted"))

    rules = r"^\t\t(?!type|typeof|flags|timeout|elements|\t|.*10\.96\.0\.0/12 drop)"  # there is no ServiceCIDR among the objects
    found = silent(ip4.splitlines(), rules, of)
    assert [line for line in found if not any(re.match(usual, line) for usual in NO_LOSS_IN_NFTABLES)] == []
    assert found.count("ct state new jump service-endpoints-check") == 1
