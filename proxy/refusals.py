"""Tells of service ports that the kernel refuses: once when they are left out, and once when they are not any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import structlog

from rules.elements import describe_key
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
