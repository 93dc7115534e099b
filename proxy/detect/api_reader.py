"""Gets and lists of the API server, in pages, with patience for a server that is busy. Reads and never writes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from proxy.model import DECODE_ERRORS
from proxy.trouble import NONSENSE, UNREACHABLE, Trouble, backoff, refusal

PAGE: Final = 500
READ_TIMEOUT: Final = 30.0
"""Seconds of silence before a server counts as gone."""
TRIES: Final = 4
TRIES_UNREACHABLE: Final = 2
_BUSY: Final = (429, 500, 502, 503, 504)


class Answer(Protocol):
    """What is needed of proxy.apiserver.Answer."""

    @property
    def status(self) -> int: ...
    def header(self, name: str) -> str: ...
    def read(self) -> bytes: ...


class Transport(Protocol):
    """What is needed of proxy.apiserver.Connection. Its methods raise Trouble."""

    @property
    def server(self) -> str: ...
    def get(self, path: str, *, read_timeout: float, compressed: bool = False) -> AbstractContextManager[Answer]: ...


class _ListMeta(Struct, rename="camel"):
    next: str = msgspec.field(name="continue", default="")


class _List(Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Expired(Struct):
    """The Status of a continue token that is too old has another token, which goes on with what there is now."""

    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


_list = msgspec.json.Decoder(_List)
_expired = msgspec.json.Decoder(_Expired)


class ApiReader:
    """One server that has not answered is not asked again: all further calls fail at once, with the same cause.

    sleep, rand: for the pauses between tries.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        sleep: Callable[[float], None] = time.sleep,
        rand: Callable[[], float] = random.random,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        self._transport, self._sleep, self._rand, self._read_timeout = transport, sleep, rand, read_timeout
        self._gone: Trouble | None = None

    @property
    def server(self) -> str:
        """host:port, for people."""
        return self._transport.server

    @property
    def is_gone(self) -> bool:
        """Whether it has not answered at all."""
        return self._gone is not None

    def get(self, path: str) -> bytes:
        """The body of the answer. Raises Trouble."""
        return self._get(path)

    def pages(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[list[msgspec.Raw]]:
        """All items of a list, each as its JSON, page after page. Raises Trouble, also after some pages."""
        token, has_expired = "", False
        while True:
            words = dict(query or {}) | {"limit": str(PAGE)} | ({"continue": token} if token else {})
            try:
                body = self._get(f"{path}?{urlencode(words)}")
            except _TooOld as error:
                if not error.token or has_expired:
                    raise
                # It goes on with what there is now. What was sent before may be gone: no matter, for a survey.
                token, has_expired = error.token, True
                continue
            try:
                page = _list.decode(body)
            except DECODE_ERRORS as error:
                raise Trouble(NONSENSE, f"the answer is no list of the Kubernetes API: {error}") from None
            yield page.items or []
            has_expired = False
            token = page.metadata.next
            if not token:
                return

    def _get(self, path: str) -> bytes:
        if self._gone:
            raise self._gone
        tries = 0
        while True:
            tries += 1
            try:
                with self._transport.get(path, read_timeout=self._read_timeout, compressed=True) as answer:
                    body = answer.read()
                    if answer.status == 200:
                        return body
                    trouble = refusal(answer.status, answer.header("Retry-After"), body, answer.header("Date"))
                    if answer.status == 410:
                        raise _TooOld(trouble, _next_token(body))
            except Trouble as error:
                if isinstance(error, _TooOld):
                    raise
                trouble = error
            if trouble.status == UNREACHABLE and tries >= TRIES_UNREACHABLE:
                self._gone = trouble
            if self._gone or tries >= TRIES or (trouble.status != UNREACHABLE and trouble.status not in _BUSY):
                raise trouble
            self._sleep(max(backoff(tries - 1, self._rand()), trouble.retry_after))


class _TooOld(Trouble):
    """A continue token has expired. token: one to go on with, '' when there is none."""

    def __init__(self, trouble: Trouble, token: str) -> None:
        super().__init__(trouble.status, trouble.cause, trouble.retry_after, trouble.reason)
        self.token = token


def _next_token(body: bytes) -> str:
    try:
        return _expired.decode(body).metadata.next
    except DECODE_ERRORS:
        return ""
