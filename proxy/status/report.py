"""What is shown of a running agent: plain data. The JSON answers are these structs.

Times are seconds since 1970; durations are seconds, unless a name ends in _ms. Texts may hold anything that an object's
name may hold: who shows them escapes them.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

SCHEMA: Final = "kube-proxy-nft/status/v1"

Verdict = Literal["healthy", "attention", "unhealthy"]
"""attention: traffic flows as it should, and something is there that somebody should look at."""

Protection = Literal["", "owned", "standby", "standby-missing", "watched"]
"""Of our tables against others. owned: nobody else can change them. standby: what others do is undone, while a second table
answers; standby-missing: that is being built, or could not be. watched: it is undone, and costs connections until then. '':
the agent does not say."""


class Health(Struct, frozen=True, kw_only=True):
    """reasons: in words, of all that is not as it should be. synced_ago: None: there was no sync yet. waiting: events in
    the inbox. failures: transactions that the kernel refused as a whole, since the start."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    programmed: bool = False
    eligible: bool = True
    synced_ago: float | None = None
    waiting: int = 0
    failures: int = 0


class FamilyShown(Struct, frozen=True, kw_only=True):
    """One IP family's table. programmed: it is as we want it, as far as we know. elements: of its sets and maps that belong
    to Services."""

    family: str
    programmed: bool
    service_ports: int
    elements: int


class Counts(Struct, frozen=True, kw_only=True):
    services: int = 0
    slices: int = 0
    endpoints: int = 0


class Watch(Struct, frozen=True, kw_only=True):
    """One resource of the API server. mode: how the last list came, '' before the first. heard_ago: None: never.
    left_out: objects that cannot even be read."""

    kind: str
    mode: str = ""
    heard_ago: float | None = None
    failures: int = 0
    relists: int = 0
    left_out: int = 0


class Repairs(Struct, frozen=True, kw_only=True):
    """What others did to our tables and was undone. recent: when, within the last hour, the newest last. looks: how often
    all of the tables were compared with what they should be; None: that is not done."""

    count: int = 0
    recent: tuple[float, ...] = ()
    looks: int | None = None


class Refused(Struct, frozen=True, kw_only=True):
    """A service port that the kernel does not take."""

    service_port: str
    address: str
    error: str


class Deprecation(Struct, frozen=True, kw_only=True):
    check: str
    severity: str
    title: str
    remedy: str
    kep: str = ""
    breaks_in: str = ""


class Slot(Struct, frozen=True, array_like=True):
    """A stretch of time. at: its start. changes: service ports that were compiled because something changed. commits: those
    that changed the kernel. mean_ms, slowest_ms: from a change's turn to the kernel's acknowledgement; the latter is the
    next larger bound of proxy.measures.COMMIT_BOUNDS. full: everything was programmed anew."""

    at: float
    changes: int = 0
    commits: int = 0
    mean_ms: float = 0.0
    slowest_ms: float = 0.0
    full: int = 0
    repairs: int = 0


class History(Struct, frozen=True, kw_only=True):
    """slots: those in which something happened, in order; each begins at a multiple of `step`."""

    step: int
    slots: tuple[Slot, ...] = ()


class Summary(Struct, frozen=True, kw_only=True):
    """rejected, refused: how many; the first of the latter are in refused_ports. source: where objects come from.
    settings: of the configuration, by dotted path. changed: those that are not the default."""

    schema: str = SCHEMA
    version: str
    python: str
    node: str
    now: float
    started: float
    health: Health
    families: tuple[FamilyShown, ...] = ()
    protection: Protection = ""
    counts: Counts = Counts()
    source: str = ""
    watches: tuple[Watch, ...] = ()
    rejected: int = 0
    refused: int = 0
    refused_ports: tuple[Refused, ...] = ()
    repairs: Repairs = Repairs()
    deprecations: tuple[Deprecation, ...] = ()
    settings: dict[str, str] = {}
    changed: tuple[str, ...] = ()
    history: History


class Rejected(Struct, frozen=True, kw_only=True):
    """An object, or a part of one, that is left out, and why."""

    kind: str
    namespace: str
    name: str
    reason: str


class RejectedPage(Struct, frozen=True, kw_only=True):
    total: int
    page: int
    pages: int
    rows: tuple[Rejected, ...]


class ServiceRow(Struct, frozen=True, kw_only=True):
    """addresses: the first few of `more` + len(addresses). endpoints: the fewest and the most that one of its service ports
    leads to from here. troubles: in words."""

    namespace: str
    name: str
    addresses: tuple[str, ...]
    more: int
    endpoints: tuple[int, int]
    policy: tuple[str, ...]
    troubles: tuple[str, ...] = ()


class ServicePage(Struct, frozen=True, kw_only=True):
    """total: how many match, of all."""

    total: int
    of: int
    page: int
    pages: int
    rows: tuple[ServiceRow, ...]


class EndpointShown(Struct, frozen=True, kw_only=True):
    """used: 'yes', 'no', or with externalTrafficPolicy: Local 'inside': by pods and the node, not from outside. why: of
    those that are not."""

    endpoint: str
    node: str
    used: Literal["yes", "inside", "no"]
    why: str = ""


class Ways(Struct, frozen=True, kw_only=True):
    """Addresses of a Service that lead to the same endpoints. troubles: in words. endpoints: the first of `total`."""

    port: str
    protocol: str
    addresses: tuple[str, ...]
    outcome: str
    endpoints: tuple[EndpointShown, ...]
    total: int
    troubles: tuple[str, ...] = ()


class ServiceDetail(Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    created: str
    policy: tuple[str, ...]
    ways: tuple[Ways, ...]
