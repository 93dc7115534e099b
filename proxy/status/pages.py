"""What is answered under / and /status/ on the metrics port: the page, which loads nothing but its own data, and JSON. Pure but
for the view of the agent that it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from proxy.http_message import Request, Response, only_reads
from proxy.status import services
from proxy.status.view import View
from proxy.web_page import parts

PAGE: Final = "/"
SUMMARY: Final = "/status/summary"
SERVICES: Final = "/status/services"
SERVICE: Final = "/status/service"
REJECTED: Final = "/status/rejected"
PATHS: Final = (PAGE, SUMMARY, SERVICES, SERVICE, REJECTED)

LONGEST_QUERY: Final = 500
"""Characters that are searched for, and words."""
MOST_WORDS: Final = 10

_COMMON: Final = {
    "Server": "kube-proxy-nft",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


class Problem(Struct, frozen=True):
    """What a JSON answer says when it has nothing else to say."""

    error: str


def pages(view: Callable[[], View | None]) -> dict[str, Callable[[Request], Response]]:
    """By path, for proxy.metrics.pages. view: None: the agent is not there yet."""
    return dict.fromkeys(PATHS, lambda request: answer(request, view()))


def answer(request: Request, view: View | None) -> Response:
    """To a request for one of PATHS."""
    refused = only_reads(request)
    if refused:
        return refused
    if request.path == PAGE:
        return _page()
    if view is None:
        return _problem(HTTPStatus.SERVICE_UNAVAILABLE, "the agent is starting")
    try:
        asked = {name: values[-1] for name, values in parse_qs(request.query, max_num_fields=10).items()}
        return _data(request.path, asked, view)
    except ValueError as error:
        return _problem(HTTPStatus.BAD_REQUEST, str(error))


def _data(path: str, asked: Mapping[str, str], view: View) -> Response:
    """Raises ValueError: it cannot be asked so."""
    if path == SUMMARY:
        return _json(view.summary())
    if path == REJECTED:
        return _json(services.rejected(view.agent, view.watchers, _number(asked.get("page", "1"))))
    if path == SERVICE:
        found = services.detail(view.agent, (asked.get("namespace", ""), asked.get("name", "")))
        return _json(found) if found else _problem(HTTPStatus.NOT_FOUND, "there is no such Service, or none for us")
    query, show = asked.get("q", ""), asked.get("show", "all")
    if len(query) > LONGEST_QUERY or len(query.split()) > MOST_WORDS:
        raise ValueError(f"q: more than {LONGEST_QUERY} characters or {MOST_WORDS} words")
    if show not in services.SHOWS:
        raise ValueError(f"show: it must be one of {', '.join(services.SHOWS)}")
    return _json(services.page(view.agent, query, show, _number(asked.get("page", "1"))))


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError("page: it must be a whole number")
    return int(text)


def _json(data: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(status, msgspec.json.encode(data), _COMMON | {"Content-Type": "application/json"})


def _problem(status: HTTPStatus, what: str) -> Response:
    return _json(Problem(what), status)


@cache
def _page() -> Response:
    it = parts(__package__, "connect-src 'self'", "frame-ancestors 'none'")
    headers = _COMMON | {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": it.policy}
    body = it.page.substitute(style=it.style, script=it.script).encode()
    return Response(HTTPStatus.OK, body, headers)
