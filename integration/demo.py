"""`kube-proxy-nft demo`: what a Service proxy does, shown with packets on a cluster made of network namespaces."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from integration import privileges
from integration.agent import AgentEnded
from integration.manifests import Manifests
from integration.topology import Bed
from proxy.errors import EXIT_CODES, UserError


def main(argv: Sequence[str]) -> int:
    """Run the demo and return its exit code: 1 if something went otherwise than it should, the agent's if that failed."""
    parser = argparse.ArgumentParser(prog="kube-proxy-nft demo", description="Show two Services at work, with packets.")
    parser.add_argument("--pause", action="store_true", help="wait for Enter before cleaning up, to look around")
    options = parser.parse_args(argv)
    try:
        good = _run(options.pause)
        print("\nCleaned up: no namespace and no process is left.")
    except KeyboardInterrupt:
        print(f"\n{EXIT_CODES[130].capitalize()}; everything is cleaned up.")
        return 130
    except UserError as e:
        for line in e.lines if isinstance(e, AgentEnded) else ():
            print(f"agent: {line}", file=sys.stderr)
        _complain(str(e))
        return e.exit_code
    except OSError as e:  # traffic that fails, or does not come, where it should not
        _complain(f"not what was expected: {e}")
        return 1
    return 0 if good else 1


def _run(pause: bool) -> bool:
    privileges.acquire()
    from integration.story import Story  # its libraries are loaded when it is known that there will be a demo

    with Bed() as bed, tempfile.TemporaryDirectory(prefix="kube-proxy-nft-demo-") as directory:
        return Story(bed, Manifests(Path(directory))).run(pause)


def _complain(text: str) -> None:
    print(f"kube-proxy-nft demo: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
