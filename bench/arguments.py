"""What the benchmarks of single things take: sizes, or numbers, and --help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from bench.dataplane_services import Size

T = TypeVar("T")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """doc: a module's docstring; its first paragraph is shown."""
    prog = f"python -m bench.{Path(sys.argv[0]).stem}"
    return argparse.ArgumentParser(prog, description=(doc or "").partition("\n\n")[0])


def size(text: str) -> Size:
    """For argparse."""
    try:
        return Size.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> int:
    """For argparse."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def given(
    doc: str | None, name: str, read: Callable[[str], T], usual: Sequence[T], arguments: Sequence[str] | None = None
) -> list[T]:
    """What stands on the command line, as many as there are, or the usual ones. Ends the program with 2 if it is wrong."""
    options = parser(doc)
    options.add_argument(name, nargs="*", type=read, help=f"instead of {' '.join(map(str, usual))}")
    return getattr(options.parse_args(arguments), name) or list(usual)
