"""Services and EndpointSlices reduced to what the state keeps of them. Pure.

Who decodes objects may reduce each at once: of ten thousand, only what is kept is then ever in memory.
"""

from __future__ import annotations

from datetime import datetime
from sys import intern
from typing import Final

from msgspec import Struct

from proxy.model import EndpointSlice, KubeObject, Service
from proxy.services import Name, Rejected, ServiceInfo, read_service
from proxy.slices import SliceInfo, read_slice

TRIGGER_TIME: Final = "endpoints.kubernetes.io/last-change-trigger-time"
"""Of an EndpointSlice: when the pod or Service changed that is why the slice is as it is now."""


class ServiceReading(Struct, frozen=True, gc=False):
    """info: None: not for us, or of no use. faults: what had to be left out, and why."""

    name: Name
    info: ServiceInfo | None
    faults: tuple[str, ...] = ()


class SliceReading(Struct, frozen=True, gc=False):
    """As ServiceReading. name: the EndpointSlice's. triggered: TRIGGER_TIME in seconds since 1970, 0: not known."""

    name: Name
    info: SliceInfo | None
    faults: tuple[str, ...] = ()
    triggered: float = 0.0


Item = KubeObject | ServiceReading | SliceReading
"""An object as a source may give it: whole, or reduced."""


def read(item: Item) -> Item:
    """Services and EndpointSlices reduced, everything else as it was."""
    match item:
        case Service(metadata=meta):
            name = (intern(meta.namespace), meta.name)
            try:
                info, faults = read_service(item)
            except Rejected as error:
                return ServiceReading(name, None, (str(error),))
            return ServiceReading(name, info, tuple(faults))
        case EndpointSlice(metadata=meta):
            slice_info, faults = read_slice(item)
            name = (intern(meta.namespace), meta.name)
            return SliceReading(name, slice_info, tuple(faults), _triggered(meta.annotations))
    return item


def _triggered(annotations: dict[str, str] | None) -> float:
    text = annotations.get(TRIGGER_TIME) if annotations else None
    if not text:
        return 0.0
    try:
        at = datetime.fromisoformat(text)
        return at.timestamp() if at.tzinfo else 0.0
    except (ValueError, OverflowError):
        return 0.0


def name_of(item: Item) -> Name:
    """(namespace, name)."""
    if isinstance(item, ServiceReading | SliceReading):
        return item.name
    return item.metadata.namespace, item.metadata.name
