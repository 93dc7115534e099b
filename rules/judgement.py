"""What to do about a transaction that the kernel has refused: one table. Pure."""

from __future__ import annotations

import errno
from enum import Enum
from typing import Final

from rules.errors import Failure, TransactionError
from rules.expressions import KNOWN, Expression
from rules.layout import LAYOUTS
from rules.transaction import AddElement, AddRule, DeleteElement, Operation


class Action(Enum):
    """What to do; nothing of the transaction was applied."""

    AGAIN = "try the same again, ever more slowly"
    DENIED = "say so, and try the same again, ever more slowly"
    MEND = "read the tables and mend what differs"
    LEAVE_OUT = "find the service ports that are refused, leave those out, and commit the rest"


class Where(Enum):
    """What a failure is about."""

    WHOLE = "the transaction"
    ELEMENT = "an element"
    EXPRESSION = "an expression that is a module of its own"
    OBJECT = "a table, chain, rule or set"


EVERYWHERE: Final = tuple(Where)
DENIALS: Final = (errno.EPERM, errno.EACCES)
SHORTAGES: Final = (errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EINTR)
CLASHES: Final = (errno.ENOENT, errno.EEXIST, errno.EBUSY)

JUDGEMENTS: Final[tuple[tuple[tuple[int, ...], tuple[Where, ...], Action, str], ...]] = (
    (DENIALS, (Where.WHOLE,), Action.DENIED, "CAP_NET_ADMIN was lost"),
    (DENIALS, EVERYWHERE, Action.DENIED, "another program has made itself the owner of the table"),
    (SHORTAGES, EVERYWHERE, Action.AGAIN, "the kernel is short of memory, or was interrupted"),
    ((errno.EMSGSIZE,), EVERYWHERE, Action.LEAVE_OUT, "it does not fit the socket's send buffer; in parts it may"),
    ((), (Where.WHOLE,), Action.AGAIN, "the kernel does not say what is wrong"),
    (CLASHES, (Where.ELEMENT, Where.OBJECT), Action.MEND, "another program has changed the table"),
    ((errno.ENOENT,), (Where.EXPRESSION,), Action.LEAVE_OUT, "the kernel has lost a module"),
    ((), EVERYWHERE, Action.LEAVE_OUT, "the kernel does not take the object: full, malformed, not supported"),
)
"""(errno values, none: all others; what they are about; what to do; what it means). The first that fits counts."""


def judge(error: TransactionError, *, fresh: bool = False) -> tuple[Action, str]:
    """What to do, and what it means. fresh: the transaction was made for tables that had just been read, or are put
    anew: then nobody else has changed them, and what clashes is at fault itself."""
    failure = decisive(error)
    action, meaning = next(
        (action, meaning)
        for numbers, places, action, meaning in JUDGEMENTS
        if where(failure) in places and (failure.errno in numbers or not numbers)
    )
    if fresh and action is Action.MEND:
        return Action.LEAVE_OUT, "the kernel does not take the object together with the others"
    if fresh and failure.errno == errno.EMSGSIZE:
        return Action.AGAIN, meaning  # whole tables cannot be made in parts
    return action, meaning


def decisive(error: TransactionError) -> Failure:
    """The failure that counts: the first. Those after it may be its consequences, as of a set that could not be
    made."""
    known = [failure for failure in error.failures if failure.errno != errno.ENOBUFS]
    return (known or error.failures)[0]


def where(failure: Failure) -> Where:
    match failure.operation:
        case AddElement() | DeleteElement():
            return Where.ELEMENT
        case None:  # with a detail: one of many elements of a set
            return Where.ELEMENT if failure.detail and failure.errno not in _WHOLE else Where.WHOLE
        case AddRule() if failure.detail and _is_module(failure.detail):
            return Where.EXPRESSION
    return Where.OBJECT


_WHOLE: Final = (errno.ENOBUFS, errno.EMSGSIZE)
"""With these, the detail is about the socket."""


def _is_module(name: str) -> bool:
    """Whether the expression can be missing where there is nf_tables."""
    return name not in KNOWN or KNOWN[name].KERNEL_OPTION != Expression.KERNEL_OPTION


def service_key_of(operation: Operation | None) -> bytes | None:
    """The service port that an element belongs to; None: to none, to several, or it is not known."""
    if not isinstance(operation, AddElement | DeleteElement):
        return None
    layout = LAYOUTS[operation.set.table.family]
    for ports, before in ((layout.addresses, b""), (layout.node_ports, bytes((layout.family,)))):
        if operation.set.key[: len(ports.key)] == ports.key:
            return before + operation.key[: sum(part.size for part in ports.key)]
    return None
