"""python -m integration.chaos [--seconds 300] [--seed N]"""

from __future__ import annotations

import argparse
import random
import sys

from integration import privileges
from integration.chaos.judge import Violation
from integration.chaos.run import run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m integration.chaos",
        description="Let an API server misbehave while objects change, and check the kernel at every commit.",
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    privileges.acquire()
    print(f"seed {options.seed}", flush=True)
    try:
        print(run(options.seconds, options.seed))
    except Violation as violation:
        print(violation, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
