"""Whether tables can have an owner that they outlive. Found by trying: distributions bring it to older kernels.

With it (Linux 6.9), what others do to all tables (`nft flush ruleset`, a firewall's reload) leaves ours alone, and what
they do to ours is refused; when the agent ends, its tables stay, for anybody to change, until the next agent takes them.
OWNER alone (Linux 5.12) is of no use: such a table goes with its owner.
"""

from __future__ import annotations

from typing import Final

from rules.objects import OWNED, Family, Table
from rules.rehearsal import Kernel, rehearse
from rules.transaction import AddTable

NAME: Final = "kube-proxy-nft-probe"


def can_own(kernel: Kernel, family: Family) -> bool:
    """Nothing is committed; takes 5 to 30 ms of waiting. False, too, when the kernel does not even look."""
    return rehearse(kernel, [AddTable(Table(family, NAME, flags=OWNED))]) is None
