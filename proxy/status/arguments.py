"""The options of `kube-proxy-nft status`. Light: every command's start reads this."""

from __future__ import annotations

import argparse
from typing import Any, Final

from proxy import subcommand

SUMMARY: Final = "say how the agent on this node is: Services, last sync, repairs, what is left out"
PORT: Final = 10249
"""Of metricsBindAddress, unless it says otherwise."""
_EPILOG: Final = """\
It asks the port of metricsBindAddress, at which the same is on a page. If that has TLS, say --url
https://...; the certificate's name is checked: --server-name, if it is not the host of the URL.
No proxy is used.
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command to argparse's subparsers."""
    parser = subcommand.add(commands, "status", SUMMARY, _EPILOG)
    parser.add_argument(
        "--url",
        metavar="URL",
        default=f"http://127.0.0.1:{PORT}",
        help=f"where the agent serves its metrics (default: http://127.0.0.1:{PORT})",
    )
    parser.add_argument("--ca-file", metavar="FILE", help="with https: the authorities of its certificate (PEM)")
    parser.add_argument("--cert-file", metavar="FILE", help="with https: a client certificate (PEM)")
    parser.add_argument("--key-file", metavar="FILE", help="its key (default: in --cert-file)")
    parser.add_argument("--server-name", metavar="NAME", help="the name in the certificate (default: the URL's host)")
    parser.add_argument("--exit-code", action="store_true", help="exit with 1 if it is not healthy")
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="how to print it (default: text)"
    )
    return parser
