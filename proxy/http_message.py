"""As much of HTTP/1.1 as a server needs that answers small questions: one request, one answer, the end. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from msgspec import Struct

MAX_REQUEST: Final = 8192
"""Bytes of a request's line and headers together; a body is not waited for."""

_REQUEST_LINE: Final = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.[01]\r?\n")
_ACCEPT: Final = re.compile(rb"\naccept:[ \t]*([^\r\n]*)", re.IGNORECASE)
_END: Final = re.compile(rb"\r?\n\r?\n")


class Request(Struct, frozen=True):
    """method: in capitals. path: as it came, without what follows a "?", which is `query`. accept: the header."""

    method: str
    path: str
    query: str = ""
    accept: str = ""


class Response(Struct, frozen=True):
    """headers: besides Date, Content-Length and Connection."""

    status: HTTPStatus
    body: bytes = b""
    headers: Mapping[str, str] = {}


def parse(received: bytes) -> Request | Response | None:
    """What the bytes are that came so far: a request; no request, and what to say to that; None: not complete yet.

    Lines may end without a carriage return. Of the headers only Accept is looked at.
    """
    end = _END.search(received, 0, MAX_REQUEST)
    if not end:
        return text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) if len(received) >= MAX_REQUEST else None
    line = _REQUEST_LINE.match(received)
    if not line:
        return text(HTTPStatus.BAD_REQUEST)
    path, _, query = line[2].decode("latin-1").partition("?")
    accept = _ACCEPT.search(received, 0, end.end())
    return Request(line[1].decode(), path, query, accept[1].decode("latin-1").strip() if accept else "")


def ends_there(received: bytes) -> bool:
    """Whether nothing came behind the headers of this request, of which `parse` knows the end."""
    end = _END.search(received)
    return end is not None and end.end() == len(received)


def render(response: Response, now: float, *, head_only: bool = False) -> bytes:
    """The answer's bytes; `now`: seconds since 1970. head_only: without the body, as to HEAD."""
    lines = [
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        *(f"{name}: {value}" for name, value in response.headers.items()),
        f"Date: {formatdate(now, usegmt=True)}",
        f"Content-Length: {len(response.body)}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if head_only else response.body)


def text(status: HTTPStatus, **headers: str) -> Response:
    """Says nothing but the status."""
    told = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff", **headers}
    return Response(status, f"{status.value} {status.phrase}\n".encode(), told)


def only_reads(request: Request) -> Response | None:
    """None: the request reads something (GET, HEAD); else what to say to it."""
    return None if request.method in ("GET", "HEAD") else text(HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD")
