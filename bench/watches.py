"""Watches of a benchmark's own, to see when events of an API server arrive that speaks TLS."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable

from bench import marks
from integration.apiserver.kinds import ALL


def start(url: str, ca: str, token: str, seen: Callable[[int, list[bytes]], None]) -> None:
    """Watch Services and EndpointSlices from now on, in threads. seen: called with nanoseconds since 1970 and the marks of one
    event. Returns when all that happens from now on will be seen."""
    for name in ("Service", "EndpointSlice"):
        host = url.removeprefix("https://")
        connection = http.client.HTTPSConnection(host, context=ssl.create_default_context(cafile=ca))
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        path = ALL[name].path
        connection.request("GET", f"{path}?limit=1", headers=headers)
        version = json.loads(connection.getresponse().read())["metadata"]["resourceVersion"]
        connection.request("GET", f"{path}?watch=1&resourceVersion={version}&timeoutSeconds=86400", headers=headers)
        answer = connection.getresponse()
        threading.Thread(target=_follow, args=[answer, seen], daemon=True).start()


def _follow(answer: http.client.HTTPResponse, seen: Callable[[int, list[bytes]], None]) -> None:
    for line in answer:
        now = time.time_ns()
        if found := marks.in_text(line):
            seen(now, found)
