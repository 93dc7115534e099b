"""Packets through an agent's rules while something is done to it: new connections all the time, and some that last."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from integration.faults.lasting import Lasting
from integration.faults.stage import LASTING, PORT, PROBED, Stage
from integration.probe import Outcome, Probe
from rules.netlink import NETLINK_NETFILTER, NLM_F_ACK, NLM_F_REQUEST

LASTING_ONES = 4
_DELETE_ALL = 1 << 8 | 2  # NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE


@dataclass
class Seen:
    """attempts: new connections (and UDP exchanges), failed: those that failed or lost a packet. broken: connections that
    were there before and did not outlast it. longest: what one took at most, in milliseconds."""

    attempts: int = 0
    failed: int = 0
    longest: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.attempts += outcome.attempts
        self.failed += outcome.failed
        self.longest = max(self.longest, outcome.longest)
        self.failures.update(outcome.failures | ({"resent": outcome.resent} if outcome.resent else {}))


class Traffic:
    """A context manager. seen: of this and of all before, after the block. address: the Service's to which connections are
    made, over TCP and UDP from outside, and over TCP from the node."""

    def __init__(self, stage: Stage, seen: Seen, address: str = PROBED) -> None:
        self._bed = stage.bed
        self._seen, self._targets = seen, [f"TCP {address} {PORT}", f"UDP {address} {PORT}"]

    def __enter__(self) -> Self:
        self._forget()
        self._lasting = Lasting(self._bed.client, LASTING, PORT, LASTING_ONES)
        self._probes = [
            Probe(self._targets, self._bed.client.namespace),
            Probe(self._targets[:1], self._bed.node.namespace),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for probe in self._probes:
            for outcome in probe.stop():
                self._seen.add(outcome)
        self._lasting.stop()
        self._seen.broken += self._lasting.broken

    def _forget(self) -> None:
        """All connections that the node knows of: those that a fault has led astray keep a client's port from working for
        two minutes, and are not to meet the next fault's."""
        with self._bed.node.namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as conntrack:
            conntrack.send(struct.pack("=IHHIIBBH", 20, _DELETE_ALL, NLM_F_REQUEST | NLM_F_ACK, 1, 0, 0, 0, 0))
            conntrack.recv(1 << 12)
