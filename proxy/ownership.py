"""Who may change our tables while the agent runs: what --table-ownership says, and what this kernel can do."""

from __future__ import annotations

from enum import Enum

import structlog

from rules.errors import KernelUnreachable, TransactionError
from rules.kernel import Kernel
from rules.objects import Family
from rules.ownership import can_own, can_own_for_life
from rules.standby import remove, table

LOG = structlog.get_logger()


class Ownership(Enum):
    """The values of --table-ownership; AUTO is never chosen."""

    AUTO = "auto"
    STANDBY = "standby"
    NEVER = "never"
    OWNED = "owned"


CHOICES = [Ownership.AUTO.value, Ownership.STANDBY.value, Ownership.NEVER.value]

NO_OWNER = "this kernel has no tables that outlive their owner (Linux 6.9)"
UNDONE = "what others do to them is undone at once"
COVERED = f"{UNDONE}; a standby, which nobody else can change, answers before and after them"


def choose(wanted: Ownership, kernel: Kernel, family: Family, *, once: bool) -> Ownership:
    """OWNED: our tables are the agent's; STANDBY: another one is (rules.standby); NEVER: none is. Logs which and why.

    Nothing with `once`: when the owner ends, nft 1.0.6 lists its tables in a way that it cannot read again.
    """
    if once:
        return Ownership.NEVER
    if wanted is Ownership.NEVER:
        LOG.info("tables_not_owned", cause="--table-ownership is never", then=UNDONE)
        return Ownership.NEVER
    if wanted is Ownership.AUTO and can_own(kernel, family):
        return Ownership.OWNED
    cause = NO_OWNER if wanted is Ownership.AUTO else f"--table-ownership is {wanted.value}"
    if can_own_for_life(kernel, family):
        LOG.info("tables_not_owned", cause=cause, then=COVERED)
        return Ownership.STANDBY
    LOG.info("tables_not_owned", cause="this kernel has no tables with an owner (Linux 5.12)", then=UNDONE)
    return Ownership.NEVER


def remove_leftover(kernel: Kernel) -> None:
    """A standby without owner is no agent's: somebody has loaded a listing. It would go on to send connections to where
    Services once were."""
    for family in Family:
        name = table(family).name
        try:
            if kernel.has(table(family)):
                kernel.commit(remove(family))
                LOG.info("standby_removed", family=family.nft, table=name, cause="it had no owner")
        except (TransactionError, KernelUnreachable) as error:
            remedy = f"nft delete table {family.nft} {name}"
            LOG.warning("standby_not_removed", family=family.nft, table=name, cause=str(error), remedy=remedy)
