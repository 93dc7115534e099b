"""What an agent survives, and how long it takes until all is right again: python -m bench.faults [--json] [FAULT …]

A node of network namespaces, with an API server's stand-in, an agent and pods; new connections to a Service every
millisecond from a client and from the node, and some that last. Then each fault, several times: how many connections
failed, and how long it took from the fault to the commit after which the kernel holds what the objects want (a dump,
compared outside of the agent). The tables are `owned` where the kernel can do it, `watched` with --table-ownership never,
and `standby` with that value of it; only what other programs do differs between these. Needs root. Takes half an hour at
full size.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from integration import privileges
from integration.faults import catalogue
from integration.faults.stage import Stage, Wrong

OWNERSHIP: Final = {"owned": "auto", "standby": "standby", "watched": "never"}
"""The kinds of tables, and the --table-ownership that makes them."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("only", nargs="*", metavar="FAULT", help="those with this in their name (default: all)")
    parser.add_argument("--services", type=int, default=10_000, help="%(default)s")
    parser.add_argument("--endpoints", type=int, default=10, help="of each Service (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of those that are done several times (%(default)s)")
    parser.add_argument("--restarts", type=int, default=100, help="%(default)s")
    parser.add_argument("--stopped", type=float, default=60.0, metavar="SECONDS", help="%(default)g")
    parser.add_argument("--tables", choices=[*OWNERSHIP, "all"], default="all", help="%(default)s")
    parser.add_argument("--json", action="store_true", help="all that was measured, as JSON")
    options = parser.parse_args()
    privileges.acquire()
    by_others = [replace(fault, rounds=options.rounds) for fault in catalogue.BY_OTHERS]
    own = list(catalogue.own(options.restarts, options.stopped, options.rounds))
    rows: list[catalogue.Row] = []
    for kind, ownership in OWNERSHIP.items():
        if options.tables not in (kind, "all"):
            continue
        faults = by_others + own if options.tables == kind or not rows else by_others
        wanted = [f for f in faults if not options.only or any(name in f.name for name in options.only)]
        if not wanted:
            continue
        with (
            tempfile.TemporaryDirectory() as directory,
            Stage(Path(directory), options.services, options.endpoints, ownership) as stage,
        ):
            try:
                stage.start()
                if any(row.tables == stage.kind() for row in rows):
                    continue  # an older kernel: what it can do best is done
                for row in catalogue.run_all(stage, wanted):
                    rows.append(row)
            except Wrong as error:
                print(f"bench.faults: {error}", file=sys.stderr)
                return 1
    if options.json:
        json.dump([row.json() for row in rows], sys.stdout, indent=2)
    else:
        print(catalogue.table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
