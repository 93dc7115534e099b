"""A migration report, before anybody writes it down: the comparison, the findings, the verdict, the plan. Plain data.

Its JSON (docs/migrate-v1.schema.json) is these structs as msgspec encodes them, with `apiVersion` and `kind`.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

API_VERSION: Final = "kube-proxy-nft/migrate/v1"
KIND: Final = "MigrationReport"

Result = Literal["same", "not-compared", "behaviour", "endpoints", "only-there", "only-here"]
"""there: the proxy that runs now. here: kube-proxy-nft. not-compared: what there is could not be read, or not all of it.
behaviour: the same endpoints, otherwise treated differently. Ordered from harmless to harmful; only-here may be a Service
that came a moment ago."""

Severity = Literal["blocker", "change", "notice", "info"]
"""blocker: do not switch. change: something has to be done, or decided, before. notice: it behaves differently, and most
will not mind. info: worth knowing."""

Verdict = Literal["ready", "ready-with-changes", "unknown", "blocked"]
"""unknown: nothing speaks against it, but the rules of the node could not be looked at."""
EXIT_CODES: Final[dict[Verdict, int]] = {"ready": 0, "ready-with-changes": 10, "unknown": 11, "blocked": 11}

Platform = Literal["kubeadm", "k3s", "daemonset"]
"""k3s: also RKE2."""


class Difference(Struct, frozen=True, rename="camel"):
    """what: "endpoints", "outside-endpoints", "affinity", "sources", "scheduler", "source-address", "refusal", "weights", "rules". check: the
    identifier of the finding that explains it; "" where nothing but the rules themselves does: they are stale, or damaged."""

    what: str
    there: str
    here: str
    check: str = ""


class EntryRow(Struct, frozen=True, rename="camel"):
    """One address of a service port. address: "10.96.0.10:53/UDP", "NodePort 30080/TCP (IPv4)". endpoints: "10.244.1.7:8080",
    of the side that has them, here before there."""

    address: str
    port: str
    result: Result
    endpoints: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()


class ServiceRow(Struct, frozen=True, rename="camel"):
    """service: "namespace/name", or what the dataplane calls it where no such Service is known. result: the worst of its
    entries'. type: as in its spec; "" where there is none."""

    service: str
    type: str
    result: Result
    entries: tuple[EntryRow, ...]


class Finding(Struct, frozen=True, rename="camel"):
    """check: its identifier, "ipvs-scheduler". objects: "Service default/web", "NodePort 30080/TCP", "chain ip filter FORWARD";
    at most 1,000 of `count`. kep: "KEP-5495" where one is behind it."""

    check: str
    severity: Severity
    title: str
    why: str
    remedy: str
    objects: tuple[str, ...] = ()
    count: int = 0
    kep: str = ""


class Proof(Struct, frozen=True, rename="camel"):
    """What the kernel said to our tables in a network namespace of their own. status: "not-tried" with its cause in
    `detail`. milliseconds: of the commit."""

    status: Literal["accepted", "refused", "not-tried"]
    detail: str = ""
    kernel: str = ""
    elements: int = 0
    bytes: int = 0
    milliseconds: float = 0.0


class Step(Struct, frozen=True, rename="camel"):
    """One step of the plan. commands: platform -> what to type; the same for all under "any"."""

    title: str
    why: str
    commands: dict[str, tuple[str, ...]] = {}


class Plan(Struct, frozen=True, rename="camel"):
    """before: once, for the cluster. node: for each node, in this order. back: the way back. platform: what this node is,
    "" if that is not known; the commands of all platforms are there."""

    platform: str
    before: tuple[Step, ...]
    node: tuple[Step, ...]
    after: tuple[Step, ...]
    back: tuple[Step, ...]


class Gap(Struct, frozen=True, rename="camel"):
    """What could not be read, so that the report does not cover it."""

    what: str
    cause: str
    remedy: str = ""


class Counts(Struct, frozen=True, rename="camel"):
    services: int
    service_ports: int
    endpoints: int
    entries: int
    results: dict[str, int]
    """Result -> how many Services."""
    severities: dict[str, int]
    """Severity -> how many findings."""


class Present(Struct, frozen=True, rename="camel"):
    """The proxy that runs now. mode: "" if not known. dataplanes: modes whose rules are in the kernel."""

    mode: str
    mode_is_set: bool
    version: str
    source: str
    dataplanes: tuple[str, ...]


class Report(Struct, frozen=True, rename="camel"):
    """compared: whether there was a dataplane to compare with; if not, all of `services` have the result "not-compared"."""

    verdict: Verdict
    exit_code: int
    reasons: tuple[str, ...]
    node: str
    made: str
    made_by: str
    cluster_version: str
    source: str
    present: Present
    compared: bool
    counts: Counts
    proof: Proof
    findings: tuple[Finding, ...]
    services: tuple[ServiceRow, ...]
    plan: Plan
    gaps: tuple[Gap, ...]
    api_version: str = API_VERSION
    kind: str = KIND
