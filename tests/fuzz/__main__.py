"""The command line of the hunt: `python -m tests.fuzz --help`."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import warnings
from base64 import b64encode
from hashlib import blake2b
from pathlib import Path
from typing import Final

import structlog

from tests.fuzz.hunt import Found, Target, attempt, hunt
from tests.fuzz.targets import TARGETS

OUT: Final = Path("build/fuzz")


def main() -> int:
    """0: nothing was found."""
    options = _options()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # what is said meanwhile is thrown away
    warnings.simplefilter("ignore")
    targets = [target for target in TARGETS if not options.target or target.name in options.target]
    if options.input:
        return _again(targets, options.input)
    failed = False
    for target in targets:
        seconds = None if options.inputs is not None or options.short else options.seconds / len(targets)
        count = target.inputs if options.short else options.inputs
        found = hunt(target, options.seed, count=count, seconds=seconds)
        failed |= bool(found.failures)
        if options.json:
            _print_json(found)
        else:
            _print(found, options.out)
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Give damaged data to what reads data.")
    names = [target.name for target in TARGETS]
    parser.add_argument("target", nargs="*", metavar="TARGET", help=f"all, or some of: {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all targets together (default: 600)")
    parser.add_argument("--inputs", type=int, metavar="N", help="so many for each target, instead")
    parser.add_argument("--short", action="store_true", help="as many as the tests do, instead")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="to repeat a hunt (default: random)")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"for what fails (default: {OUT})")
    parser.add_argument("--input", type=Path, metavar="FILE", help="try this one input and nothing else; one TARGET")
    parser.add_argument("--json", action="store_true", help="an object a target on standard output, and no files")
    options = parser.parse_args()
    unknown = set(options.target) - set(names)
    if unknown or (options.input and len(options.target) != 1):
        parser.error(f"unknown target: {', '.join(unknown)}" if unknown else "--input needs one TARGET")
    return options


def _again(targets: list[Target], file: Path) -> int:
    [target] = targets
    failed = attempt(target, file.read_bytes())
    print(f"{failed[0]}\n\n{failed[1]}" if failed else "it is in order")
    return int(bool(failed))


def _print(found: Found, out: Path) -> None:
    rate = found.inputs / found.seconds if found.seconds else 0
    print(f"{found.target:20} {found.inputs:8} inputs {rate:7.0f}/s  {len(found.failures)} failures  seed {found.seed}")
    for failure in found.failures:
        out.mkdir(parents=True, exist_ok=True)
        name = f"{found.target}-{blake2b(failure.data, digest_size=4).hexdigest()}"
        file = out / f"{name}.bin"
        file.write_bytes(failure.data)
        told = f"{failure.where}\nseed {found.seed}, input {failure.number}\n\n{failure.trace}"
        (out / f"{name}.txt").write_text(told)
        print(f"  {failure.where}  (input {failure.number}, {len(failure.data)} bytes)")
        print(f"  again: python -m tests.fuzz {found.target} --input {file}")
    sys.stdout.flush()


def _print_json(found: Found) -> None:
    failures = [
        {"where": f.where, "trace": f.trace, "data": b64encode(f.data).decode(), "number": f.number}
        for f in found.failures
    ]
    told = {"target": found.target, "inputs": found.inputs, "seconds": round(found.seconds, 2), "failures": failures}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    sys.exit(main())
