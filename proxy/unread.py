"""What a command that only looks could not read, and goes on without."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR

PLURAL: Final = {SERVICE: "Services", ENDPOINT_SLICE: "EndpointSlices", SERVICE_CIDR: "ServiceCIDRs", NODE: "Nodes"}
"""What the objects of a kind are called, all together."""


class Unread(Struct, frozen=True):
    """Something that was not read: what, why, and what to do about it."""

    what: str
    cause: str
    remedy: str = ""
