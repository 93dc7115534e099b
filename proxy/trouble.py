"""What goes wrong with requests to the API server, and what to do about it. Pure."""

from __future__ import annotations

from contextlib import suppress
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from proxy.model import DECODE_ERRORS

BACKOFF_FIRST: Final = 0.2
BACKOFF_MAX: Final = 30.0
RETRY_AFTER_MAX: Final = 60.0

# Kinds of trouble that have no HTTP status.
UNREACHABLE: Final = 0  # no answer
BROKEN: Final = 1  # the answer to a watch stopped short
NONSENSE: Final = 2  # the answer is not the Kubernetes API's
SILENT: Final = 3  # nothing came for as long as we wait
NO_STREAMING: Final = 4  # the server does not do streaming lists

EXPIRED: Final = "Expired"
TOO_LARGE: Final = "ResourceVersionTooLarge"
"""Reasons for which the server does not have the resourceVersion that was asked for: gone, or not yet known to it."""


class Trouble(Exception):
    """A request failed or ended before its time.

    status: HTTP's or one of the above. cause: words for people. retry_after: seconds, 0 when the server did not say.
    reason: metav1.Status.reason, TOO_LARGE where that is the cause; '' when the server gave none.
    """

    def __init__(self, status: int, cause: str, retry_after: float = 0.0, reason: str = "") -> None:
        self.status, self.cause, self.retry_after, self.reason = status, cause, retry_after, reason
        super().__init__(cause)

    @property
    def is_of_version(self) -> bool:
        """The server cannot start from the resourceVersion that it was given."""
        return self.status == 410 or self.reason in (EXPIRED, TOO_LARGE)


# -- What the server says ----------------------------------------------------------------------------------------------


class _Cause(Struct):
    reason: str = ""


class _Details(Struct):
    causes: list[_Cause] | None = None
    retry_after: float = msgspec.field(name="retryAfterSeconds", default=0.0)


class _Status(Struct):
    """metav1.Status."""

    message: str = ""
    reason: str = ""
    code: int = 500
    details: _Details | None = None


_status = msgspec.json.Decoder(_Status)


def refusal(status: int, header: str, body: bytes, date: str = "") -> Trouble:
    """The Trouble that an answer other than 200 means. header, date: Retry-After and Date, or ''."""
    try:
        said = _status.decode(body)
        text = said.message or said.reason
    except DECODE_ERRORS:
        said = _Status()
        text = body[:200].decode("utf-8", "replace")  # a proxy or load balancer in between: HTML, or words
    return _trouble(status, f"HTTP {status}: {' '.join(text.split())[:300]}", said, retry_after(header, date))


def error_event(obj: bytes | msgspec.Raw) -> Trouble:
    """The Trouble that the object of an ERROR event in a watch means."""
    try:
        said = _status.decode(obj)
    except DECODE_ERRORS as e:
        return Trouble(NONSENSE, f"an ERROR event has no Status: {e}")
    seconds = min(max(0.0, said.details.retry_after if said.details else 0.0), RETRY_AFTER_MAX)
    return _trouble(said.code, f"{said.code} in the watch: {said.message or said.reason}"[:300], said, seconds)


def _trouble(status: int, cause: str, said: _Status, seconds: float) -> Trouble:
    causes = (said.details.causes if said.details else None) or ()
    if TOO_LARGE in (each.reason for each in causes) or "Too large resource version" in said.message:
        return Trouble(status, cause, seconds, TOO_LARGE)
    return Trouble(status, cause, seconds, said.reason)


def retry_after(header: str, date: str = "") -> float:
    """Seconds to wait, from Retry-After: a number, or a time, which counts from the answer's Date. 0 for none, or one
    that is not understood."""
    seconds = 0.0
    if header.isascii() and header.isdigit():
        seconds = float(header)
    elif header and date:
        with suppress(ValueError, TypeError, OverflowError):
            seconds = (parsedate_to_datetime(header) - parsedate_to_datetime(date)).total_seconds()
    return min(max(0.0, seconds), RETRY_AFTER_MAX)


# -- What to do --------------------------------------------------------------------------------------------------------


class Step(Enum):
    LIST = "list"
    WATCH = "watch"


class Rule(NamedTuple):
    event: str  # the log event
    relist: bool = False  # the version that we have is of no use
    at_once: bool = False  # no pause, the first time
    remedy: str = ""


OTHER: Final = Rule("api_refused")
RULES: Final = {
    UNREACHABLE: Rule("api_unreachable"),
    BROKEN: Rule("watch_broken"),
    NONSENSE: Rule("api_nonsense", relist=True, remedy="is this the address of a Kubernetes API server?"),
    SILENT: Rule("watch_silent"),
    400: Rule("api_refused", relist=True),
    401: Rule("api_unauthorized", remedy="check the token or client certificate that the proxy uses, and its expiry"),
    403: Rule("api_forbidden", remedy="grant this account, in a ClusterRole: {rule}"),
    404: Rule("api_resource_missing", relist=True),
    410: Rule("watch_expired", relist=True, at_once=True),
    422: Rule("api_refused", relist=True),
}


BEHIND: Final = Rule("api_server_behind", relist=True)


def rule_of(trouble: Trouble) -> Rule:
    return BEHIND if trouble.reason == TOO_LARGE else RULES.get(trouble.status, OTHER)


class Next(NamedTuple):
    step: Step
    pause: float


def backoff(failures: int, rand: float) -> float:
    """Seconds to wait after so many failures in a row before this one; `rand` in [0, 1) spreads the nodes."""
    return min(BACKOFF_MAX, BACKOFF_FIRST * 2.0 ** min(failures, 16)) * (0.5 + rand / 2)


def what_next(step: Step, trouble: Trouble, failures: int, rand: float) -> Next:
    """What to do after `trouble` in `step`, and when (seconds)."""
    rule = rule_of(trouble)
    pause = 0.0 if rule.at_once and failures == 0 else max(backoff(failures, rand), trouble.retry_after)
    return Next(Step.LIST if rule.relist else step, pause)
