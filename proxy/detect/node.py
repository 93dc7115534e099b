"""All evidence of the machine that this runs on: what is configured, and what its kernel, ports and processes show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from proxy.detect import files, live, processes, proxy_ports
from proxy.detect.evidence import ConfiguredMode, Evidence, KubeTables, ServedMode, Unreadable
from proxy.detect.host import gather_host
from proxy.detect.scope import OURS

OWN_CONFIG: Final = "kube-proxy-nft reads no mode in it, and a kube-proxy that is started with it does"
IDLE: Final = "no kube-proxy runs with it, because kube-proxy-nft is in its place"
_WITH_PROXY: Final = ("kube-proxy", "k3s", "rke2", "kubelite")


def gather(node: str, proxy_urls: Sequence[str] | None = None, *, is_ours_here: bool = False) -> list[Evidence]:
    """node: its name. proxy_urls: where a kube-proxy may serve /proxyMode; None: where it does by default.
    is_ours_here: kube-proxy-nft is known to run on it; else its port tells."""
    running = processes.scan()
    urls = proxy_ports.URLS if proxy_urls is None else proxy_urls
    found = [*gather_host(Path("/"), node, running), *live.gather(node, proxy_urls=urls, running=running)]
    kube_proxy = any(process.program in _WITH_PROXY for process in running)
    return with_ours(found, is_ours_here=is_ours_here, is_kube_proxy_here=kube_proxy)


def with_ours(found: Iterable[Evidence], *, is_ours_here: bool, is_kube_proxy_here: bool) -> list[Evidence]:
    """The same, with what it means that kube-proxy-nft runs on this node. is_kube_proxy_here: a process that is, or may
    have, a kube-proxy is seen. Pure."""
    items = [msgspec.structs.replace(e, os="linux") if isinstance(e, ConfiguredMode) and not e.os else e for e in found]
    answers = any(isinstance(e, Unreadable) and e.harmless and e.cause == proxy_ports.OURS_ANSWERS for e in items)
    if not is_ours_here and not answers:
        return items
    alone = not is_kube_proxy_here and not any(isinstance(e, ServedMode) for e in items)
    return [_beside_ours(item, alone) for item in items]


def _beside_ours(item: Evidence, alone: bool) -> Evidence:
    if isinstance(item, KubeTables) and item.owner == OURS:
        return msgspec.structs.replace(item, running=True)
    if isinstance(item, ConfiguredMode) and alone and not item.overridden:
        return msgspec.structs.replace(item, idle=True, note=item.note or IDLE)
    return item


def gather_for_agent(node: str, config: str = "") -> list[Evidence]:
    """The same for the agent on this node. config: the file that it was given, '' for none."""
    found = gather(node, is_ours_here=True)
    if not config or any(_decides(item, config) for item in found):
        return found
    return [*(item for item in found if item.place.name != config), *_own(node, config)]


def _decides(item: Evidence, config: str) -> bool:
    """Whether a kube-proxy runs with this file."""
    if not isinstance(item, ConfiguredMode) or item.place.name != config:
        return False
    return item.sure == "certain" and not item.overridden and not item.idle


def _own(node: str, config: str) -> list[Evidence]:
    try:
        data = Path(config).read_bytes()
    except OSError:
        return []  # whoever watches it says so
    return [_read_by_ours(e) for e in files.read_file(config, data, node=node, expected=True)]


def _read_by_ours(item: Evidence) -> Evidence:
    if isinstance(item, ConfiguredMode):
        return msgspec.structs.replace(item, note=OWN_CONFIG, idle=True, os=item.os or "linux")
    if isinstance(item, Unreadable) and item.effect == "refused":
        return msgspec.structs.replace(item, sure="possible")  # by kube-proxy, which is not here
    return item
