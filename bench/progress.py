"""How far it is, on standard error: a bar on a terminal that can draw one, else a line for each part that is done."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Bar:
    """total: parts of the whole. Use it as a context manager."""

    def __init__(self, total: int, stream: TextIO = sys.stderr) -> None:
        self._total, self._done, self._stream = total, 0, stream
        self._began = time.monotonic()
        self._progress: Progress | None = None
        console = Console(file=stream)
        if stream.isatty() and not console.is_dumb_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=console, transient=True)
            self._task = self._progress.add_task("starting", total=total)

    def step(self, text: str, done: int = 0) -> None:
        """It does this now; `done` more parts are done."""
        self._done += done
        if self._progress:
            self._progress.update(self._task, description=text, advance=done)
        elif done:
            seconds = time.monotonic() - self._began
            print(f"[{self._done}/{self._total}, {seconds:.0f} s] {text}", file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """A line that stays."""
        if self._progress:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            self._plain(text)

    def _plain(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._progress:
            self._progress.stop()
