"""Who has an address, protocol and port when two Services claim it. Pure.

The API server gives every clusterIP to one Service; manifests, old objects and externalIPs need not. The older Service
keeps what it has (creationTimestamp, then namespace and name), whichever was seen first.
"""

from __future__ import annotations

from msgspec import Struct

from proxy.services import Name, PortInfo, ServiceInfo


class Claim(Struct, frozen=True):
    service: ServiceInfo
    port: PortInfo


class Claims:
    """key (rules.elements.service_key) -> the claim that holds it, and those that wait for it."""

    def __init__(self) -> None:
        self._holders: dict[bytes, Claim] = {}
        self._waiting: dict[bytes, list[Claim]] = {}

    def holder(self, key: bytes) -> Claim | None:
        return self._holders.get(key)

    def all_of(self, key: bytes) -> tuple[Claim, ...]:
        """The holder and those that wait, in their order; () if nobody claims it."""
        holder = self._holders.get(key)
        return (holder, *self._waiting.get(key, ())) if holder else ()

    def claim(self, claim: Claim) -> Claim | None:
        """Enter a claim, in the place of an earlier one of the same Service. Returns the claim that has to wait, if
        this one meets another Service's."""
        key = claim.port.key
        holder = self._holders.get(key)
        if holder is None:
            self._holders[key] = claim
            return None
        others = [c for c in (holder, *self._waiting.get(key, ())) if c.service.name != claim.service.name]
        self._settle(key, [*others, claim])
        if not others:
            return None
        return others[0] if self._holders[key] is claim else claim

    def release(self, key: bytes, service: Name) -> None:
        """Take back the Service's claim, if it has one."""
        holder = self._holders.get(key)
        if holder is None:
            return
        self._settle(key, [c for c in (holder, *self._waiting.get(key, ())) if c.service.name != service])

    def _settle(self, key: bytes, claims: list[Claim]) -> None:
        claims.sort(key=lambda claim: claim.service.rank)
        if claims:
            self._holders[key] = claims[0]
        else:
            self._holders.pop(key, None)
        if claims[1:]:
            self._waiting[key] = claims[1:]
        else:
            self._waiting.pop(key, None)
