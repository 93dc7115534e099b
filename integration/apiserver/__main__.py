"""python -m integration.apiserver: the stand-in by hand."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from integration.apiserver import FakeApi, certificates, load, script
from integration.apiserver.watches import STREAMING


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.apiserver",
        description="A stand-in for the API server, on 127.0.0.1. It takes objects from files and from clients "
        "(POST, PUT, PATCH, DELETE), and misbehaves as a script says.",
        epilog="Lines of a script:" + (script.__doc__ or "").partition("line:")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--objects", type=Path, nargs="*", default=[], help="YAML or JSON files, or directories")
    parser.add_argument("--kubeconfig", type=Path, help="write a kubeconfig here")
    parser.add_argument("--token", default="", help="clients need this token")
    parser.add_argument("--tls", type=Path, metavar="DIR", help="speak TLS; make the certificates here")
    parser.add_argument("--streaming", choices=STREAMING, default="on", help="what becomes of streaming lists")
    parser.add_argument("--do", action="append", default=[], metavar="LINE", help="a line of a script, at the start")
    parser.add_argument("--script", metavar="FILE", help="lines to do; '-': standard input, as they come")
    options = parser.parse_args(argv)
    try:
        serve(options)
    except (script.ScriptError, OSError) as e:
        print(f"{parser.prog}: {e}", file=sys.stderr)
        return 1
    return 0


def serve(options: argparse.Namespace) -> None:
    api = FakeApi(port=options.port, token=options.token, streaming=options.streaming)
    if options.tls:
        authority = certificates.Authority(options.tls)
        api.tls, api.ca = authority.server(), authority.ca
    api.put_all(load(options.objects))
    first = list(script.read(options.do))
    with api, contextlib.suppress(KeyboardInterrupt):
        if options.kubeconfig:
            api.kubeconfig(options.kubeconfig)
        print(f"{api.url} with {api.version - 1} objects; end with ^C", flush=True)
        script.run(api, first, time.sleep, time.monotonic)
        if options.script == "-":
            script.run(api, script.read(sys.stdin), time.sleep, time.monotonic)
        elif options.script:
            with open(options.script) as lines:
                script.run(api, script.read(lines), time.sleep, time.monotonic)
        threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
