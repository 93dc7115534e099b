"""python -m bench: measures everything, prints tables, writes JSON and plots. See `options`."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import files, machine, others, report
from bench.dataplane_rules import available
from bench.layouts_worker import NAMES
from bench.options import Options, parse
from bench.progress import Bar
from bench.run import CONTROL, DATAPLANE, LAYOUTS, Run, parts_of
from integration import namespaces
from integration.apiserver_real import assets
from integration.interrupts import Interrupts
from proxy.errors import NoPermission, UserError

VERSION = 1
"""Of the JSON, whose schema is in bench-v1.schema.json."""
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a table with question marks is better than none
    try:
        options = parse(arguments)
        if options.draw_from:
            document = read(options.draw_from)
            files.prepare(options.output)
            written = show(document, options.output)
        else:
            require()
            files.prepare(options.output)  # before all, so that nothing is measured in vain
            document = measure(options)
            text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
            path, trouble = files.write_somewhere(options.output / "bench.json", text)
            written = show(document, options.output, trouble) and not trouble
            say(f"all figures: {path}")
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return INTERRUPTED
    return INTERRUPTED if document["stopped"] else 1 if document["failures"] or not written else 0


def measure(options: Options) -> dict[str, Any]:
    """The JSON document; `stopped` says why it is not complete. Raises UserError."""
    found = machine.describe()
    document: dict[str, Any] = {
        "version": VERSION,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "stopped": "",
        "machine": found,
        "server": "kube-apiserver" if assets() else "stand-in",
        "quick": options.quick,
        "plan": asdict(options.plan),
        "sizes": [str(size) for size in options.sizes],
        "parts": list(options.parts),
        "subjects": [asdict(subject) for subject in options.subjects],
        "warnings": [],
        "measurements": [],
        "failures": [],
        "dataplane": None,
    }
    if {LAYOUTS, DATAPLANE} & set(options.parts):
        document["warnings"] += [
            f"the layout {name} is left out: the program that loads it is not installed"
            for name in NAMES
            if not available(name)
        ]
    began, before = time.monotonic(), others.clocks()
    layouts = sum(map(available, NAMES))
    total = parts_of(options.plan, options.sizes, len(options.subjects), layouts, options.parts, quick=options.quick)
    interrupts = Interrupts()
    interrupts.install()
    try:
        with Bar(total) as bar:
            if warning := machine.busy(found["load"][0], found["cores"]):
                document["warnings"].append(warning)
            for warning in document["warnings"]:
                bar.note(f"Warning: {warning}")
            run = Run(options.sizes, options.subjects, options.plan, document, bar)
            if CONTROL in options.parts:
                run.control()
            if LAYOUTS in options.parts:
                run.layouts()
            if DATAPLANE in options.parts:
                run.dataplane(options.quick)
    except KeyboardInterrupt:
        document["stopped"] = "interrupted"
    finally:
        interrupts.restore()
    document["seconds"] = round(time.monotonic() - began, 1)
    document["others"] = others.between(before, others.clocks())
    if warning := others.warning(document["others"]):
        document["warnings"].append(warning)
    return document


def require() -> None:
    """Raises UserError for what is missing."""
    if os.geteuid() != 0:
        raise NoPermission(
            "no permission", "it makes network namespaces and programs nftables in them", "run it as root"
        )
    namespaces.require("ip", "nft", "unshare", "setpriv", "nsenter")


def read(path: Path) -> dict[str, Any]:
    """Raises UserError."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        if document["version"] != VERSION:
            raise UserError(str(path), f"it is of version {document['version']}, not {VERSION}", "measure anew")
        report.text(document)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(str(path), f"it cannot be read as a bench.json ({type(error).__name__}: {error})") from None
    return document


def show(document: dict[str, Any], output: Path, trouble: str = "") -> bool:
    """Tables and plots; `trouble` is told between them. Whether all plots were made that could be."""
    from bench import plots

    say(report.text(document, colour=sys.stdout.isatty()))
    if trouble:
        print(f"bench: {trouble}", file=sys.stderr)
    try:
        drawn = plots.draw(document, output)
    except ImportError as error:
        print(f"bench: no plots: {error} (pip install 'kube-proxy-nft[bench]')", file=sys.stderr)
    except OSError as error:
        print(f"bench: no plots: {error}", file=sys.stderr)
        return False
    else:
        if drawn:
            say("\n".join(f"plot: {path}" for path in drawn))
    return True


def say(text: str) -> None:
    """Somebody may have stopped reading: files are written nevertheless."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
