"""What this node's kernel, ports and processes show, in the network namespace of the calling thread.

Nothing here raises for what a node may look like, starts a process, loads a kernel module or changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from proxy.detect import interfaces, ipsets, iptables_legacy, ipvs, nft_names, other_proxies, processes, proxy_ports
from proxy.detect.evidence import Evidence
from proxy.detect.kernel_support import KernelFiles, kernel
from proxy.detect.processes import RunningProxy


def gather(
    node: str = "",
    *,
    proxy_urls: Iterable[str] = proxy_ports.URLS,
    running: Sequence[RunningProxy] | None = None,
) -> list[Evidence]:
    """All live evidence of this node.

    node: its name, for the evidence. proxy_urls: where to ask for /proxyMode, all in turn. running: what
    processes.scan gave, if it has been called already.
    """
    files = KernelFiles()
    if running is None:
        running = processes.scan()
    found: list[Evidence] = [
        kernel(files, has_ipvs=ipvs.is_loaded()),
        *proxy_ports.gather(proxy_urls),
        *interfaces.gather(),
        *ipvs.gather(),
        *iptables_legacy.gather(),
        *nft_names.gather(files.presence),
        *ipsets.gather(files.presence),
        *other_proxies.gather(running),
        *processes.blindness(running),
    ]
    return [_of_node(evidence, node) for evidence in found]


def _of_node(evidence: Evidence, node: str) -> Evidence:
    place = msgspec.structs.replace(evidence.place, node=node)
    return msgspec.structs.replace(evidence, place=place)
