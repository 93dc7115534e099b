"""What the kernel refuses, in words: service ports, once when they are left out and once when they are not any more; and a
whole transaction."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

import structlog

from proxy.errors import KernelTooOld, NoPermission, RulesRefused, UserError
from rules.elements import describe_key
from rules.errors import TransactionError
from rules.expressions import KNOWN
from rules.layout import TABLE_NAME
from rules.refusals import Aside, News

LOG = structlog.get_logger()

NAMED: Final = 20
"""So many are logged each, of those that are left out at the same time."""
NOTED: Final = 3
"""So many are written out in one Event."""


def report(news: News) -> str:
    """Log it. Returns the words for an Event, "" if nothing was refused."""
    for aside in news.refused[:NAMED]:
        LOG.error(
            "service_port_refused",
            service_port=_name(aside),
            address=describe_key(aside.key),
            error=str(aside.failure),
            then="left out; tried again when it changes, and now and then" if aside.port else "not taken away",
            remedy="see whether the Service or its endpoints are odd; if not, please report this, with the kernel's version",
        )
    if len(news.refused) > NAMED:
        LOG.error("service_ports_refused", more=len(news.refused) - NAMED, then="left out like those before")
    for aside in news.taken[:NAMED]:
        LOG.info("service_port_taken", service_port=_name(aside), address=describe_key(aside.key))
    if len(news.taken) > NAMED:
        LOG.info("service_ports_taken", more=len(news.taken) - NAMED)
    return "; ".join(_notes(news))


def _notes(news: News) -> Iterator[str]:
    for aside in sorted(news.refused, key=lambda aside: aside.key)[:NOTED]:
        yield f"{_name(aside)} at {describe_key(aside.key)} is left out: {aside.failure}"
    if len(news.refused) > NOTED:
        yield f"and {len(news.refused) - NOTED} more (see the log)"


def _name(aside: Aside) -> str:
    """As in the elements' comments: "namespace/name:port"."""
    return aside.port.name if aside.port else "one that is gone"


def explain(error: TransactionError) -> UserError:
    """Why the kernel does not take our rules, and what to do."""
    if error.is_not_permitted:
        return NoPermission(
            "nftables",
            "no permission to program it",
            "run as root, or with the capability CAP_NET_ADMIN; if it is so, another program owns the table: `nft list table"
            f" ip {TABLE_NAME}` shows `flags owner` and its name; end it",
        )
    whole = {failure.errno: failure.detail for failure in error.failures if not failure.operation}
    if errno.EMSGSIZE in whole:  # without CAP_NET_ADMIN this comes before the kernel looks for the permission
        return NoPermission("nftables", whole[errno.EMSGSIZE], "run as root")
    if errno.EOPNOTSUPP in whole:
        return KernelTooOld(
            "nftables",
            "this kernel does not have it",
            "load its module nf_tables or use a kernel with CONFIG_NF_TABLES",
        )
    missing = error.missing_expressions
    if missing:
        options = ", ".join(sorted({KNOWN[name].KERNEL_OPTION for name in missing if name in KNOWN}))
        return KernelTooOld(
            "nftables",
            f"this kernel has no {', '.join(missing)} expression",
            f"load its module or use a kernel with {options}; Linux 5.13 or newer is needed",
        )
    return RulesRefused("nftables", str(error), "please report this, with the kernel's version")
