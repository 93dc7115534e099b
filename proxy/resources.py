"""What a proxy asks the API server for, and with which queries. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from msgspec import Struct

from proxy.model import ENDPOINT_SLICE, LABEL_HEADLESS, LABEL_PROXY_NAME, NODE, SERVICE, SERVICE_CIDR

NEWEST: Final = ""
"""The resourceVersion to ask for when it must be the newest there is: the server asks etcd."""

ANY: Final = "0"
"""Whatever the server has in its cache: cheap, and perhaps old."""


class Resource(Struct, frozen=True):
    """What is listed and watched. `optional`: older servers do not have it, then there are no objects of `kind`.

    `version` is a resourceVersion: NEWEST, ANY, or one that was seen, for an answer that is not older.
    """

    kind: str
    path: str
    selector: tuple[tuple[str, str], ...] = ()
    optional: bool = False

    def list_path(self, version: str) -> str:
        """All objects, in one answer."""
        query = [("resourceVersion", version)] if version != NEWEST else []
        if version not in (NEWEST, ANY):
            query.append(("resourceVersionMatch", "NotOlderThan"))
        return self._with([*query, *self.selector])

    def stream_path(self, version: str, seconds: int) -> str:
        """All objects as a watch that begins with them: a streaming list (KEP-3157)."""
        query = [("watch", "1"), ("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]
        query += [("allowWatchBookmarks", "true"), ("timeoutSeconds", str(seconds)), *self.selector]
        return self._with(query + ([("resourceVersion", version)] if version != NEWEST else []))

    def watch_path(self, version: str, seconds: int) -> str:
        """What changes after `version`, for so long."""
        query = [("watch", "1"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(seconds))]
        return self._with([*query, *self.selector, ("resourceVersion", version)])

    def _with(self, query: list[tuple[str, str]]) -> str:
        return f"{self.path}?{urlencode(query)}" if query else self.path

    @property
    def rule(self) -> str:
        """What an RBAC rule must allow."""
        *group, _, name = self.path.removeprefix("/apis/").removeprefix("/api/").split("/")
        return f'verbs ["list", "watch"] on resource "{name}" in apiGroup "{group[0] if group else ""}"'


def resources(node_name: str) -> tuple[Resource, ...]:
    """The four resources that a proxy on `node_name` needs."""
    return (
        Resource(SERVICE, "/api/v1/services", (("labelSelector", f"!{LABEL_PROXY_NAME}"),)),
        Resource(
            ENDPOINT_SLICE,
            "/apis/discovery.k8s.io/v1/endpointslices",
            (("labelSelector", f"!{LABEL_HEADLESS},!{LABEL_PROXY_NAME}"),),
        ),
        Resource(SERVICE_CIDR, "/apis/networking.k8s.io/v1/servicecidrs", optional=True),
        Resource(NODE, "/api/v1/nodes", (("fieldSelector", f"metadata.name={node_name}"),)),
    )
