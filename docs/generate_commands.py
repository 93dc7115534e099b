"""docs/commands.md from the command line's own parser: python -m docs.generate_commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from docs.tables import filled, table
from proxy import command_line
from proxy.flags import FLAGS, TLS_FLAGS

FILE: Final = Path(__file__).with_name("commands.md")
ELSEWHERE: Final = {*FLAGS, *TLS_FLAGS}
"""kube-proxy's flags, and those beside them: docs/configuration.md has them."""


def current(text: str) -> str:
    """The document with its tables made anew."""
    return filled(text, {"commands": "\n".join(map(_command, commands()))})


def commands() -> Iterator[argparse.ArgumentParser]:
    """All that can be run, in the order of the help text; but for `demo`, which only a checkout has."""
    yield from _below(command_line._parser())


def _below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner or any(options(parser)):  # `migrate` does something, and so does `migrate collect`
        yield parser
    for action in inner:
        for name, command in action.choices.items():
            if name != "demo":
                yield from _below(command)


def options(command: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Those that docs/commands.md explains."""
    for action in command._actions:
        names = {name.lstrip("-") for name in action.option_strings}
        if isinstance(action, argparse._SubParsersAction | argparse._VersionAction):
            continue
        if action.help != argparse.SUPPRESS and "help" not in names and not names & ELSEWHERE:
            yield action


def _command(command: argparse.ArgumentParser) -> str:
    rows = [(_name(action), _help(action)) for action in options(command)]
    about = " ".join((command.description or "").split())
    return f"## {command.prog}\n\n{about}\n\n{table(('option', 'effect'), rows)}"


def _name(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else _value(action)
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(f"`{name}{' ' + value if value else ''}`" for name in action.option_strings)


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices:
        return "/".join(map(str, action.choices))
    return (action.dest or "").upper()


def _help(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%").replace("|", "\\|")
    return " ".join(text.split())


if __name__ == "__main__":
    FILE.write_text(current(FILE.read_text(encoding="utf-8")), encoding="utf-8")
