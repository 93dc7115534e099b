"""A headless Chromium without a network, driven through the DevTools protocol over a pair of pipes.

https://chromedevtools.github.io/devtools-protocol/: JSON messages that end with a zero byte; commands have numbers, and
what has none is an event.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE: Final = 60.0
"""Seconds until an answer is given up."""

_KEYS: Final = {"Tab": (9, ""), "Enter": (13, "\r")}

Message = dict[str, Any]


def find() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """Lives as long as it is open, in a network namespace of its own that has no interface but a loopback that is down.

    events: all that its page told, in order. requests: addresses that it asked for, whether it was let or not.
    """

    def __init__(self, program: str) -> None:
        self._profile = tempfile.mkdtemp()
        # It reads commands from descriptor 3 and answers on descriptor 4.
        script = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1'
        command = [
            *("sh", "-c", script, "sh", "unshare", "--net", program, "--remote-debugging-pipe", "--headless"),
            *(
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--hide-scrollbars",
            ),
            *("--disable-dev-shm-usage", f"--user-data-dir={self._profile}", "about:blank"),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin and self._process.stdout
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[Message] = []
        self._target = ""
        self.renew()

    def renew(self) -> None:
        """A new page for the old one, whose events are forgotten, those on their way too."""
        old, self._session = self._target, None
        self._target = self.send("Target.createTarget", url="about:blank")["targetId"]
        if old:
            self.send("Target.closeTarget", targetId=old)
        self._session = self.send("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._profile, ignore_errors=True)

    def send(self, method: str, **parameters: Any) -> Message:
        """A command, and its answer. AssertionError: it failed, or there was no answer."""
        self._number += 1
        message: Message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        answer = self._receive(lambda got: got.get("id") == self._number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: Message = answer["result"]
        return result

    def wait_for(self, event: str, since: int = 0) -> Message:
        """An event with this name; `since`: of self.events, the first that counts."""
        for got in self.events[since:]:
            if got["method"] == event:
                return got
        return self._receive(lambda got: got.get("method") == event)

    def open(self, page: str, *, javascript: bool = True) -> None:
        """Show this HTML, from a file, and wait until all of it is there."""
        path = Path(self._profile, "page.html")
        path.write_text(page, encoding="utf-8")
        self.send("Emulation.setScriptExecutionDisabled", value=not javascript)
        since = len(self.events)
        self.send("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired", since)

    def ask(self, expression: str) -> Any:
        """What JavaScript says; a promise is waited for. AssertionError: it throws."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """As a mouse does, in the middle of an element."""
        where = f"document.querySelector({json.dumps(selector)})"
        box = self.ask(f"{where}.scrollIntoView({{block: 'center'}}), (({{x, y, width, height}}) => [x + width / 2,"
                       f" y + height / 2])({where}.getBoundingClientRect())")  # fmt: skip
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def press(self, key: str) -> None:
        """A letter, or one of _KEYS."""
        code, text = _KEYS.get(key, (ord(key[0]), key))
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                text=text * (kind == "keyDown"),
            )

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def look(self, width: int, height: int, *, dark: bool = False, media: str = "") -> None:
        """How large the window is, and what the reader prefers."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[feature])

    def picture(self, *, whole: bool = False) -> bytes:
        """A PNG."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    @property
    def requests(self) -> list[str]:
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts, and what the browser itself logged as an error, such as a breach of the page's policy."""
        texts = []
        for event in self.events:
            match event:
                case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                    texts.append(json.dumps(details))
                case {"method": "Log.entryAdded", "params": {"entry": {"level": "error", "text": text}}}:
                    texts.append(text)
        return texts

    def _receive(self, wanted: Callable[[Message], bool]) -> Message:
        """The first such message; events are kept."""
        deadline = time.monotonic() + PATIENCE
        while True:
            line, zero, rest = self._unread.partition(b"\0")
            if not zero:
                ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
                data = os.read(self._from, 1 << 20) if ready else b""
                assert data, f"the browser is silent (exit code {self._process.poll()}): {self.events[-3:]}"
                self._unread += data
                continue
            self._unread = rest
            message: Message = json.loads(line)
            if "method" in message and message.get("sessionId") == self._session:
                self.events.append(message)
            if wanted(message):
                return message
