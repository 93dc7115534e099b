"""How the parser of each command is made. Light: every command's start reads this."""

from __future__ import annotations

import argparse
from typing import Any, Final

HELP_WIDTH: Final = 96


class Help(argparse.RawDescriptionHelpFormatter):
    """No wider than people read, whatever the terminal's width is."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=HELP_WIDTH)


def add(commands: Any, name: str, summary: str, epilog: str = "") -> argparse.ArgumentParser:
    """A new parser of argparse's subparsers. summary: without a full stop; for the list of commands, and its own help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog or None,
        formatter_class=Help,
        allow_abbrev=False,
    )
    return parser


def some_text(text: str) -> str:
    """An option's type."""
    if not text:  # an unset variable in a script: not the same as leaving the option out
        raise argparse.ArgumentTypeError("it is empty")
    return text
