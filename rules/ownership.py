"""Whether tables can have an owner. Found by trying: distributions bring it to older kernels.

With one that they outlive (Linux 6.9), what others do to all tables (`nft flush ruleset`, a firewall's reload) leaves
ours alone, and what they do to ours is refused; when the agent ends, its tables stay, for anybody to change, until the
next agent takes them. With OWNER alone (Linux 5.12) a table goes with its owner: good for a standby (rules.standby).
"""

from __future__ import annotations

from typing import Final

from rules.objects import OWNED, OWNER, Family, Table
from rules.rehearsal import Kernel, rehearse
from rules.transaction import AddTable

NAME: Final = "kube-proxy-nft-probe"


def can_own(kernel: Kernel, family: Family) -> bool:
    """Tables that outlive their owner. Nothing is committed; takes 5 to 30 ms of waiting. False, too, when the kernel
    does not even look."""
    return _takes(kernel, family, OWNED)


def can_own_for_life(kernel: Kernel, family: Family) -> bool:
    """Tables that go with their owner. As `can_own`."""
    return _takes(kernel, family, OWNER)


def _takes(kernel: Kernel, family: Family, flags: int) -> bool:
    return rehearse(kernel, [AddTable(Table(family, NAME, flags=flags))]) is None
