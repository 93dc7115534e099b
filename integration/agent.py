"""An agent that runs on a node: its process, and the events that it logs."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration import namespaces
from integration.namespaces import Namespace
from proxy.errors import UserError


class AgentEnded(UserError):
    """The agent is gone, and should not be. `lines` is what it said of it; `exit_code` its own (1 for a signal)."""

    def __init__(self, returncode: int, lines: list[str]) -> None:
        by = f"exit code {returncode}" if returncode >= 0 else f"signal {-returncode}"
        super().__init__("agent", f"it ended with {by}")
        self.lines = lines
        self.exit_code = returncode if returncode > 0 else 1


@dataclass(frozen=True)
class LogLine:
    """One line of standard error: `event` is '' and `fields` empty where it is no JSON event."""

    text: str
    event: str
    fields: dict[str, Any]

    def is_error(self) -> bool:
        return not self.event or self.fields.get("level") in ("error", "critical")

    def plain(self) -> str:
        """For people: the event and its fields, without time, level and traceback."""
        if not self.event:
            return self.text
        hidden = ("event", "level", "timestamp", "exception")
        return " ".join([self.event, *(f"{k}={v}" for k, v in self.fields.items() if k not in hidden)])


class Agent:
    """Starts `argv` in the namespace, in directory `cwd` (which Python also finds modules in). `stop` ends it."""

    def __init__(self, namespace: Namespace, argv: Sequence[str], cwd: Path) -> None:
        search = [str(cwd), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(search)}
        self.process = namespace.popen(argv, stderr=subprocess.PIPE, env=env)
        self._lines: list[LogLine] = []
        self._closed = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, name="log of the agent", daemon=True)
        self._reader.start()

    def mark(self) -> int:
        """Where the log ends now, for `wait`."""
        with self._news:
            return len(self._lines)

    def wait(self, event: str, since: int = 0, timeout: float = 10.0) -> dict[str, Any]:
        """The fields of the first `event` after the mark `since`, waiting for it if need be.

        Raises AgentEnded when the agent ends first, TimeoutError after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        with self._news:
            while True:
                for line in self._lines[since:]:
                    if line.event == event:
                        return line.fields
                since = len(self._lines)
                if self._closed:
                    break
                if not self._news.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"the agent has not logged {event!r} for {timeout:g} s")
        raise self._ended()

    def check(self) -> None:
        """Raise AgentEnded if it does not run any more."""
        if self.process.poll() is not None:
            self._reader.join(1)
            raise self._ended()

    def log(self) -> list[LogLine]:
        """What it has logged so far."""
        with self._news:
            return list(self._lines)

    def stop(self) -> None:
        """End it and wait for its end. May be called twice."""
        namespaces.stop(self.process)
        self._reader.join()
        if self.process.stderr:
            self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr
        for text in self.process.stderr:
            line = _parse(text.rstrip("\n"))
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._closed = True
            self._news.notify_all()

    def _ended(self) -> AgentEnded:
        log = self.log()
        return AgentEnded(self.process.wait(), [line.plain() for line in log if line.is_error()])


def _parse(text: str) -> LogLine:
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if isinstance(fields, dict) and "event" in fields:
        return LogLine(text, str(fields["event"]), fields)
    return LogLine(text, "", {})
