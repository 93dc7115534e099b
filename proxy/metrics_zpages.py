"""The pages beside /metrics that Kubernetes' components have: /healthz, /configz, /statusz (KEP-4827), /flagz (KEP-4828).

The last two are text for people, and JSON for who asks for it as they say: Accept:
application/json;v=v1beta1;g=config.k8s.io;as=Statusz (or Flagz). Any other JSON is not acceptable.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from proxy import config_report
from proxy.config import Config
from proxy.flags import FLAGS, PORTS
from proxy.http_message import Request, Response, text
from proxy.metrics_kube_proxy import REFERENCE

COMPONENT: Final = "kube-proxy-nft"
GROUP: Final = "config.k8s.io"
VERSIONS: Final = ("v1beta1", "v1alpha1")
HEALTHZ: Final = "/healthz"
CONFIGZ: Final = "/configz"
STATUSZ: Final = "/statusz"
FLAGZ: Final = "/flagz"

_WARNING: Final = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for "
    "debugging purposes only."
)
_HEADERS: Final = {"Server": COMPONENT, "X-Content-Type-Options": "nosniff"}

Page = Callable[[Request], Response]


def pages(
    config: Config,
    version: str,
    started: datetime,
    *,
    given: Mapping[str, str] = {},
    paths: tuple[str, ...] = (),
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> dict[str, Page]:
    """By path. version: of this program, which began when `started`. given: flags that are no field of the configuration.
    paths: others that are served there."""
    served = sorted({*paths, HEALTHZ, CONFIGZ, STATUSZ, FLAGZ})
    effective = {"kubeproxy.config.k8s.io": config_report.effective(config)}
    flags = flag_values(config, given)

    def statusz(request: Request) -> Response:
        seconds = max(0, int((now() - started).total_seconds()))
        emulated = ".".join(REFERENCE.removeprefix("v").split(".")[:2])
        if form := _structured(request.accept, "Statusz"):
            said = {
                "startTime": started.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "uptimeSeconds": seconds,
                "goVersion": _python(),
                "binaryVersion": version,
                "emulationVersion": emulated,
                "paths": served,
            }
            return _object("Statusz", form, said)
        lines = (
            f"Started: {started.astimezone(UTC):%a %b %e %H:%M:%S UTC %Y}",
            f"Up: {seconds // 3600} hr {seconds // 60 % 60:02} min {seconds % 60:02} sec",
            f"Python version: {platform.python_version()}",
            f"Binary version: {version}",
            f"Emulation version: {emulated}",
            f"Paths: {' '.join(served)}",
        )
        return _people(request, "statusz", lines)

    def flagz(request: Request) -> Response:
        if form := _structured(request.accept, "Flagz"):
            return _object("Flagz", form, {"flags": flags})
        return _people(request, "flagz", tuple(f"{name}={value}" for name, value in flags.items()))

    return {
        HEALTHZ: lambda _: Response(HTTPStatus.OK, b"ok", _HEADERS | {"Content-Type": "text/plain; charset=utf-8"}),
        CONFIGZ: lambda _: _json(effective),
        STATUSZ: statusz,
        FLAGZ: flagz,
    }


def flag_values(config: Config, given: Mapping[str, str] = {}) -> dict[str, str]:
    """What kube-proxy's flags that have an effect would be given to say what the configuration says; sorted by name."""
    fields = config_report.fields(config)
    found = {
        flag.name: _go(fields[flag.field])
        for flag in FLAGS.values()
        if flag.has_effect and flag.field in fields and flag.name not in PORTS
    }
    return dict(sorted((found | dict(given)).items()))


def _go(value: Any) -> str:
    """As Go's flags print it."""
    match value:
        case bool():
            return "true" if value else "false"
        case list():
            return f"[{','.join(map(str, value))}]"
        case dict():
            return ",".join(f"{name}={_go(one)}" for name, one in sorted(value.items()))
    return str(value)


def _python() -> str:
    return f"python{platform.python_version()}"


def _structured(accept: str, kind: str) -> str:
    """The version of the API in which it is asked for, ''."""
    for one in accept.split(","):
        media, *parameters = (part.strip() for part in one.split(";"))
        said = dict(part.split("=", 1) for part in parameters if "=" in part)
        if media == "application/json" and said.get("g") == GROUP and said.get("as") == kind:
            if said.get("v") in VERSIONS:
                return said["v"]
    return ""


def _people(request: Request, page: str, lines: tuple[str, ...]) -> Response:
    kinds = [kind.partition(";")[0].strip() for kind in request.accept.split(",")]
    if request.accept and not any(re.fullmatch(r"(\*|text)/(\*|plain)", kind) for kind in kinds):
        return text(HTTPStatus.NOT_ACCEPTABLE)
    body = "\n".join(("", f"{COMPONENT} {page}", _WARNING, "", *lines, ""))
    return Response(HTTPStatus.OK, body.encode(), _HEADERS | {"Content-Type": "text/plain; charset=utf-8"})


def _object(kind: str, version: str, fields: Mapping[str, object]) -> Response:
    meta = {"kind": kind, "apiVersion": f"{GROUP}/{version}", "metadata": {"name": COMPONENT}}
    return _json({**meta, **fields})


def _json(data: object) -> Response:
    body = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
    return Response(HTTPStatus.OK, body, _HEADERS | {"Content-Type": "application/json"})
