"""The status page in a browser without a network: what it asks for is answered by this process, or not at all."""

from __future__ import annotations

import base64
import itertools
import json
import os
import time
from collections.abc import Callable
from typing import Any, Final

from proxy.http_message import Request, Response
from tests.browser import Browser, Message

ORIGIN: Final = "http://node-1.test"
PATIENCE: Final = 30.0

Answer = Callable[[Request], Response | None]


class PageBrowser(Browser):
    """answer: what is at ORIGIN; None: the connection fails. asked: what was asked for, there or anywhere."""

    def __init__(self, program: str) -> None:
        self.answer: Answer = lambda _request: None
        self.asked: list[str] = []
        self._posts = itertools.count(1 << 20)
        super().__init__(program)

    def visit(self, answer: Answer) -> None:
        """Load the page anew."""
        self.renew()
        self.answer, self.asked = answer, []
        self.send("Fetch.enable", patterns=[{"urlPattern": "*"}])
        self.send("Page.navigate", url=f"{ORIGIN}/")
        self.until("document.body && document.body.className !== 'starting'")

    def until(self, expression: str) -> None:
        """Wait until JavaScript finds it true."""
        deadline = time.monotonic() + PATIENCE
        while not self.ask(f"!!({expression})"):
            assert time.monotonic() < deadline, (expression, self.complaints, self.asked)
            time.sleep(0.02)

    def texts(self, selector: str) -> list[str]:
        """Of elements that take room on the page."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})].filter(e => e.checkVisibility())"
        return list(self.ask(f"{found}.map(e => e.innerText ?? e.textContent)"))

    def _receive(self, wanted: Callable[[Message], bool]) -> Message:
        while True:
            got = super()._receive(lambda got: wanted(got) or got.get("method") == "Fetch.requestPaused")
            if got.get("method") == "Fetch.requestPaused":
                self._fulfil(got["params"])
            if wanted(got):
                return got

    def _fulfil(self, paused: Any) -> None:
        """Its own answer is not waited for: it may be this thread that waits for another one's."""
        url: str = paused["request"]["url"]
        self.asked.append(url)
        path, _, query = url.removeprefix(ORIGIN).partition("?")
        request = Request(paused["request"]["method"], path, query)
        said = None
        if url.startswith(f"{ORIGIN}/"):
            said = self.answer(request)
        if said is None:
            self._post("Fetch.failRequest", requestId=paused["requestId"], errorReason="ConnectionRefused")
            return
        self._post(
            "Fetch.fulfillRequest",
            requestId=paused["requestId"],
            responseCode=said.status.value,
            responseHeaders=[{"name": name, "value": value} for name, value in said.headers.items()],
            body=base64.b64encode(said.body).decode(),
        )

    def _post(self, method: str, **parameters: Any) -> None:
        # Not a number of `send`, which waits for its last one.
        message = {"id": next(self._posts), "method": method, "params": parameters, "sessionId": self._session}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
