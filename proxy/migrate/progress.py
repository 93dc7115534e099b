"""What is being done, on standard error, while a person waits for it; nothing where nobody watches."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from proxy.snapshot import Progress


@contextlib.contextmanager
def shown() -> Iterator[Progress]:
    """Takes what is being read, and how many there are. The line goes when all is done."""
    if not (sys.stderr and sys.stderr.isatty()) or os.environ.get("TERM") == "dumb":
        yield lambda what, count: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(what: str, count: int) -> None:
            bar.update(task, description=f"{what}: {count:,}" if count else what)

        yield tell
