"""Findings about what is in a node's kernel: leftovers, two proxies at once, what a mode needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from proxy.detect import versions
from proxy.detect.evidence import (
    Evidence,
    IpvsInterface,
    IpvsTable,
    Kernel,
    KubeChains,
    KubeSets,
    KubeTables,
    OtherProxy,
    ServedMode,
)
from proxy.detect.findings import Finding
from proxy.detect.numbers import count
from proxy.detect.scope import OURS, Scope
from proxy.detect.versions import KEP_NFTABLES

CLEAN_UP: Final = "kube-proxy-nft cleanup --kube-proxy"


def leftovers(scope: Scope) -> Iterator[Finding]:
    """Rules of another mode than the one in force: left over after a switch."""
    mode, in_force, ours_alone = scope.mode(), scope.in_force(), scope.has_ours_alone()
    if not mode and not ours_alone:
        return
    here = f"{_article(mode)} {mode} kube-proxy" if mode else f"{OURS} runs"
    why = "after a switch of modes" if mode else "by a kube-proxy that does not run any more"
    decides: list[Evidence] = [in_force] if in_force else [e for e in scope.of(KubeTables) if e.owner == OURS]
    for other, traces in scope.at_work().items():
        if other != mode:
            yield Finding(
                check=f"{other}-leftover",
                severity="broken",
                title=f"{here}, and rules of {other} mode are still in the kernel",
                explanation=f"they were left over {why}, do not follow the cluster any more, and can"
                f" lead connections to endpoints that are gone: {_counts(traces)}",
                remedy=f"run `{CLEAN_UP}` on the node while no kube-proxy runs, or drain and reboot it",
                evidence=(*traces, *decides),
                mode=other,
                node=scope.node,
            )


def idle_leftovers(scope: Scope) -> Iterator[Finding]:
    """What is left of another mode and leads no packets: after `iptables -F`, of a table that was put to sleep, of IPVS mode
    when its virtual servers are gone."""
    mode, at_work = scope.mode(), scope.at_work()
    is_anything_else = bool(mode or at_work or scope.has_ours_alone())
    for other, traces in scope.idle().items():
        is_told = is_anything_else or any(isinstance(e, IpvsInterface | KubeSets) for e in traces)
        if is_told and other != mode and other not in at_work:
            *more, last = _idle(traces)
            what = " and ".join(filter(None, [", ".join(more), last]))
            yield Finding(
                check=f"{other}-leftover",
                severity="notice",
                title=f"{what} of {other} mode {'is' if what in _SINGLE else 'are'} left in the kernel",
                explanation=f"they lead no packets, and are in nobody's way: {_counts(traces)}",
                remedy=f"nothing has to be done; `{CLEAN_UP}`, on the node while no kube-proxy runs, removes them",
                evidence=tuple(traces),
                mode=other,
                node=scope.node,
            )


def foreign_servers(scope: Scope) -> Iterator[Finding]:
    """IPVS virtual servers that are none of a kube-proxy's interface."""
    for table in scope.of(IpvsTable):
        if table.services and not table.kube:
            yield Finding(
                check="ipvs-servers",
                severity="notice",
                title="the kernel has IPVS virtual servers, and no kube-ipvs0",
                explanation="they are another load balancer's (keepalived), or what an unfinished clean-up of kube-proxy"
                f" left: {_counts([table])}",
                remedy="see whose they are with `ipvsadm -Ln`; leave those of a load balancer alone",
                evidence=(table,),
                node=scope.node,
            )


def two_dataplanes(scope: Scope) -> Iterator[Finding]:
    """Rules of several proxies or modes, and nothing says which one is in force."""
    found = scope.at_work()
    if len(found) > 1 and not scope.mode() and not scope.has_ours_alone():
        yield Finding(
            check="two-dataplanes",
            severity="broken",
            title=f"the kernel has rules of {' and '.join(found)} mode at once",
            explanation="one of them follows the cluster at most; nothing on this node says which",
            remedy=f"find the mode of the running kube-proxy (port 10249, /proxyMode), then `{CLEAN_UP}` the others",
            evidence=tuple(e for traces in found.values() for e in traces),
            node=scope.node,
        )
    ours = [e for e in scope.of(KubeTables) if e.owner == OURS and not e.dormant]
    theirs: list[Evidence] = [*scope.of(ServedMode), *(e for traces in found.values() for e in traces)]
    if ours and theirs and not scope.has_ours_alone():  # leftovers, then
        running = any(isinstance(e, ServedMode) for e in theirs)
        yield Finding(
            check="two-proxies",
            severity="broken" if running else "notice",
            title=f"kube-proxy-nft's tables and kube-proxy's {'process' if running else 'rules'} are both here",
            explanation="whichever hook comes first leads a connection; the other one's rules only matter where it has none",
            remedy=f"finish the hand-over: stop kube-proxy, then `{CLEAN_UP}`",
            evidence=(*ours, *theirs),
            node=scope.node,
        )


def other_proxies(scope: Scope) -> Iterator[Finding]:
    """Programs that may do kube-proxy's work, beside one that does."""
    others = scope.of(OtherProxy)
    programs = sorted({e.program for e in others})
    busy: list[Evidence] = [
        *scope.of(ServedMode),
        *(e for traces in scope.at_work().values() for e in traces),
        *(e for e in scope.of(KubeTables) if e.owner == OURS and not e.dormant),
    ]
    if others and (busy or len(programs) > 1):
        sure = any(e.sure != "possible" for e in others)
        yield Finding(
            check="two-proxies",
            severity="broken" if sure and busy else "notice",
            title=f"{' and '.join(programs)} may handle Services too",
            explanation="two proxies on one node lead the same Services, each in its own way"
            if sure
            else "whether it replaces kube-proxy here cannot be told from outside; without the replacement this is in order",
            remedy="see its configuration: keep either its replacement of kube-proxy, or kube-proxy",
            evidence=(*others, *busy),
            node=scope.node,
        )


def kernel(scope: Scope) -> Iterator[Finding]:
    """What the mode, or the next one, needs of the kernel."""
    mode = scope.mode()
    need = versions.show(versions.KERNEL_FOR_NFTABLES)
    for found in scope.of(Kernel):
        if mode == "ipvs" and found.ipvs == "absent":
            yield Finding(
                check="kernel-without-ipvs",
                severity="broken",
                title="IPVS mode, and this kernel has no IPVS",
                explanation=f"kube-proxy exits at its start: Linux {found.release} has no module ip_vs",
                remedy="set the mode to nftables or iptables",
                evidence=(found,),
                mode="ipvs",
                node=scope.node,
            )
        release = versions.parse_kernel(found.release)
        if release is None or release >= versions.KERNEL_FOR_NFTABLES:
            continue
        said = scope.in_force()
        unset = said is not None and said.mode == "" and not scope.is_set_by_its_tool(said)
        now = mode == "nftables"
        yield Finding(
            check="kernel-too-old",
            severity="broken" if now else "notice",
            title=f"Linux {found.release} is too old for nftables mode",
            explanation=f"nftables mode needs Linux {need} or newer: "
            + (
                "kube-proxy exits at its start"
                if now
                else "with 1.40, which makes nftables the default, kube-proxy would not start here"
                if unset
                else "this node cannot move to it as it is"
            ),
            remedy=f"upgrade the kernel to {need} or newer" + (", or set the mode to iptables" if now or unset else ""),
            evidence=(found,),
            mode="nftables",
            kep=KEP_NFTABLES,
            node=scope.node,
            breaks_in="1.40" if unset and not now else "",
        )


_SINGLE: Final = ("a dormant table", "kube-ipvs0")


def _idle(traces: Iterable[Evidence]) -> list[str]:
    """What the things are that lead no packets, in words."""
    kinds: dict[type[Evidence], str] = {
        IpvsInterface: "kube-ipvs0",
        KubeSets: "empty ipsets",
        KubeChains: "idle chains",
        KubeTables: "a dormant table",
    }
    return list(dict.fromkeys(kinds[type(e)] for e in traces))


def _article(mode: str) -> str:
    return "an" if mode[:1] in ("i", "n") else "a"  # "an en-ef-tables"


def _counts(traces: Iterable[Evidence]) -> str:
    """How much there is, in words."""
    words: list[str] = []
    for e in traces:
        match e:
            case IpvsTable():
                words.append(count(e.services, "IPVS virtual server"))
            case IpvsInterface():
                words.append(f"kube-ipvs0 with {count(e.addresses, 'address')}")
            case KubeChains():
                words.append(f"{count(e.chains, 'KUBE-* chain')} ({e.place.name} {e.place.part}".rstrip() + ")")
            case KubeSets():
                words.append(count(e.sets, "KUBE-* ipset" if e.entries else "empty KUBE-* ipset"))
            case KubeTables():
                words.append(f"table {e.place.name} with {count(e.chains, 'chain')}")
            case _:
                pass
    return ", ".join(words)
