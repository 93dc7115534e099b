"""The command `cleanup --kube-proxy`."""

from __future__ import annotations

import msgspec
import structlog

from proxy.detect import processes
from proxy.detect.output import put
from proxy.errors import AlreadyRunning, CleanupIncomplete, NoPermission
from proxy.leftovers import words
from proxy.leftovers.gather import look
from proxy.leftovers.plan import Plan, plan
from proxy.leftovers.remove import Failed, remove
from proxy.leftovers.running import find

LOG = structlog.get_logger()
TRIES = 5


def run(*, dry_run: bool, force: bool, output: str) -> None:
    """output: "text" or "json". Raises UserError: kube-proxy runs, no permission, or something stays that should not."""
    running = processes.scan()
    alive = find(running)
    if alive and not dry_run and not force:
        raise AlreadyRunning(
            "kube-proxy",
            f"it runs here, and would put back what is removed: {', '.join(each.what for each in alive)}",
            "stop it first, or give --force",
        )
    for each in alive:
        LOG.warning("kube_proxy_runs", what=each.what, then="it puts back what is removed", remedy="stop it first")
    planned = plan(look(running))
    failed: list[Failed] = []
    if not dry_run:
        planned, failed = _removed(planned, running)
    show = words.text if output == "text" else _json
    put(show(planned, failed, dry_run=dry_run))
    _judge(planned, failed)


def _removed(planned: Plan, running: list[processes.RunningProxy]) -> tuple[Plan, list[Failed]]:
    """What was to go, and what failed. Where something changed between the look and the removal: once more."""
    failed = remove(planned)
    for _ in range(TRIES - 1):
        if not any(failure.has_changed for failure in failed):
            break
        failed = remove(plan(look(running)))
    return planned, failed


def _json(planned: Plan, failed: list[Failed], *, dry_run: bool) -> str:
    document = words.data(planned, failed, dry_run=dry_run)
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _judge(planned: Plan, failed: list[Failed]) -> None:
    faults = [(unread.what, unread.cause, unread.is_permission) for unread in planned.unread]
    faults += [(failure.what, failure.cause, failure.is_permission) for failure in failed]
    if not faults:
        return
    what, cause, _ = faults[0]
    if all(is_permission for _, _, is_permission in faults):
        raise NoPermission(what, cause, "run as root, or with the capability CAP_NET_ADMIN")
    more = f" (and {len(faults) - 1} more: see above)" if len(faults) > 1 else ""
    raise CleanupIncomplete(what, cause + more, "what is named may still be there: mend the cause, and run it again")
