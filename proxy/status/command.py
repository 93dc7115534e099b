"""`kube-proxy-nft status`: asks the agent that runs here, and prints what it says."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import msgspec

from proxy.detect.output import is_terminal, put
from proxy.status.client import Client, Tls
from proxy.status.report import Rejected, Summary
from proxy.status.text import text


def run(options: argparse.Namespace) -> int:
    """Do what the options of `arguments` say. Returns the exit code. Raises UserError."""
    files = Tls(options.ca_file or "", options.cert_file or "", options.key_file or "", options.server_name or "")
    client = Client(options.url, files)
    summary = client.summary()
    rejected = client.rejected().rows if summary.rejected else ()
    if options.output == "json":
        put(json.dumps(_data(summary, rejected), indent=2) + "\n")
    else:
        put(text(summary, rejected, colours=is_terminal() and not os.environ.get("NO_COLOR")))
    return 1 if options.exit_code and summary.health.verdict == "unhealthy" else 0


def _data(summary: Summary, rejected: tuple[Rejected, ...]) -> dict[str, Any]:
    """The agent's summary, and the first of what is left out."""
    data: dict[str, Any] = msgspec.to_builtins(summary)
    return data | {"rejected_objects": msgspec.to_builtins(rejected)}
