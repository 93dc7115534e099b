"""All evidence of the machine that this runs on: what is configured, and what its kernel, ports and processes show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from proxy.detect import files, live, processes, proxy_ports
from proxy.detect.evidence import ConfiguredMode, Evidence
from proxy.detect.host import gather_host

OWN_CONFIG: Final = "kube-proxy-nft reads no mode in it, and a kube-proxy that is started with it does"


def gather(node: str, proxy_urls: Sequence[str] | None = None) -> list[Evidence]:
    """node: its name. proxy_urls: where a kube-proxy may serve /proxyMode; None: where it does by default."""
    running = processes.scan()
    urls = proxy_ports.URLS if proxy_urls is None else proxy_urls
    return [*gather_host(Path("/"), node, running), *live.gather(node, proxy_urls=urls, running=running)]


def gather_for_agent(node: str, config: str = "") -> list[Evidence]:
    """The same for the agent on this node. config: the file that it was given, '' for none."""
    found: Iterable[Evidence] = gather(node)
    if config:
        found = [*(item for item in found if item.place.name != config), *_own(node, config)]
    return list(found)


def _own(node: str, config: str) -> list[Evidence]:
    try:
        data = Path(config).read_bytes()
    except OSError:
        return []  # whoever watches it says so
    items = files.read_file(config, data, node=node, expected=True)
    return [msgspec.structs.replace(e, note=OWN_CONFIG) if isinstance(e, ConfiguredMode) else e for e in items]
