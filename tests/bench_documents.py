"""A small benchmark's JSON, made by hand, for tests of what is made of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bench.records import Failure, Measurement

PEER = "kube-proxy"
OURS = "kube-proxy-nft"


def document() -> dict[str, Any]:
    """Two proxies at three sizes, of which the peer is given up at the largest; and layouts."""
    measurements: list[dict[str, Any]] = []

    def add(
        part: str, size: str, subject: str, figure: str, number: int, *samples: float, limit: float | None = None
    ) -> None:
        measurements.append(asdict(Measurement(part, size, subject, figure, number, list(samples), limit)))

    for size, scale in (("100x10", 1.0), ("1000x10", 2.0), ("1000x50", 4.0)):
        for number in range(3):
            add("control", size, OURS, "start_s", number, 0.5 * scale + 0.01 * number)
            add("control", size, OURS, "start_commits", number, 1)
            add("control", size, OURS, "restart_s", number, 0.4 * scale)
            add("control", size, OURS, "endpoint_ms", number, *(0.5 + 0.001 * i for i in range(100)), 1.5 + number)
            add("control", size, OURS, "ready_ms", number, 7.0, 8.0 + number)
            add("control", size, OURS, "ready_commits", number, 1, 1)
            add("control", size, OURS, "memory_mb", number, 52.4)
        if size != "1000x50":
            add("control", size, PEER, "start_s", 0, 5.0 * scale)
            add("control", size, PEER, "endpoint_ms", 0, 100.0, 120.0, 900.0)
        add("layouts", size, OURS, "load_s", 0, 0.1 * scale)
        add("layouts", size, OURS, "change_ms", 0, 0.08, 0.1)
        add("layouts", size, "iptables-nft", "load_s", 0, 10.0 * scale)
        add("layouts", size, "iptables-nft", "change_ms", 0, 80.0, 100.0)
    add("control", "1000x50", PEER, "start_s", 0, limit=45)
    failure = Failure(
        "control", "1000x10", PEER, "a gang of 512", "it ended by itself, with exit code 2", ["panic: [no]"]
    )
    return {
        "version": 1,
        "began": "2026-11-30T12:00:00+00:00",
        "seconds": 61.5,
        "stopped": "",
        "machine": {
            "cpu": "A Model of CPU",
            "cores": 2,
            "memory": 24105,
            "kernel": "6.18.0",
            "system": "Debian GNU/Linux 12 (bookworm)",
            "virtual": "kvm",
            "python": "3.11.2",
            "nft": "nftables v1.0.6",
            "iptables": "iptables v1.8.9 (nf_tables)",
            "load": [1.5, 1.0, 0.5],
            "version": "0.1.0",
            "commit": "0123456789abcdef0123456789abcdef01234567",
            "changed": False,
        },
        "server": "stand-in",
        "quick": False,
        "plan": {"rounds": 3},
        "sizes": ["100x10", "1000x10", "1000x50"],
        "parts": ["control", "layouts"],
        "subjects": [
            {"name": OURS, "argv": ["python", "-m", "proxy", "run"], "mode": "nftables"},
            {"name": PEER, "argv": ["/usr/local/bin/kube-proxy"], "mode": "nftables"},
        ],
        "warnings": ["the load average is 1.5 at the start"],
        "measurements": measurements,
        "failures": [asdict(failure)],
        "dataplane": None,
    }
