"""The options of `kube-proxy-nft trace`. Light: every command's start reads this."""

from __future__ import annotations

import argparse
from typing import Any, Final

from proxy import subcommand

SUMMARY: Final = "follow the first packets of new connections through the kernel's tables"
_EPILOG: Final = """\
TO is ADDRESS:PORT or ADDRESS:PORT/udp, as the client has it: 10.96.0.10:53/udp, [fd00::a]:443.
Somebody else has to send the packets. Every nftables table at work shows, also those of
iptables-nft. The kernel is asked by a table of our own, which is gone when this ends, however that
happens.
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to argparse's subparsers."""
    parser = subcommand.add(commands, "trace", SUMMARY, _EPILOG)
    parser.add_argument("target", metavar="TO", help="where the connections go to")
    parser.add_argument("--from", dest="source", metavar="ADDRESS", help="only those that come from there")
    parser.add_argument("--connections", metavar="N", type=_count, default=1, help="end after so many (default: 1)")
    parser.add_argument(
        "--seconds", metavar="S", type=_seconds, default=30.0, help="end after so many seconds (default: 30)"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="json: one line for each connection"
    )
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:7]) <= 100_000:
        raise argparse.ArgumentTypeError("it is no number from 1 to 100000")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError("it is no number of seconds up to 86400")
    return seconds
