"""The process that measures control planes at one size, in namespaces of its own, and tells what it finds: see `records`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from bench import records
from bench.api_objects import NODE
from bench.changes import Cluster
from bench.control import Control, TooSlow
from bench.dataplane_services import Size
from bench.plan import Plan, title
from bench.records import Step, Teller
from bench.servers import server
from bench.subjects import Ended, Subject, configuration

PART = "control"


def measure(size: Size, subjects: list[Subject], plan: Plan, directory: Path) -> None:
    """All rounds. In each one all subjects have their turn, and the first one is another each time."""
    prepare()
    records.tell(Step(f"{title(size)}: an API server with so many objects"))
    with server(directory) as api:
        cluster = Cluster(size, api)
        kubeconfig = Path(api.kubeconfig(directory / "kubeconfig"))
        out: set[str] = set()
        for number in range(plan.rounds):
            turn = number % len(subjects)
            for subject in (*subjects[turn:], *subjects[:turn]):
                if subject.name not in out and not _measure_one(subject, cluster, plan, number, directory, kubeconfig):
                    out.add(subject.name)
                records.tell(Step(f"{title(size)}: {subject.name} measured", done=1))


def _measure_one(
    subject: Subject, cluster: Cluster, plan: Plan, number: int, directory: Path, kubeconfig: Path
) -> bool:
    """Whether it is worth another round."""
    teller = Teller(PART, str(cluster.size), subject.name, number, records.tell)
    config = directory / f"config-{subject.mode}.json"
    config.write_text(json.dumps(configuration(subject.mode, kubeconfig, NODE)))
    subprocess.run(["nft", "flush", "ruleset"], check=True)
    control = Control(subject, cluster, plan, config, directory / "log", teller, seed=number)
    try:
        control.measure()
    except TooSlow as slow:
        teller.too_slow(slow.figure, plan.timeout)
        teller.failed(control.during, f"not done after {plan.timeout:g} s", control.tail())
        return False
    except (Ended, OSError, RuntimeError) as error:
        teller.failed(control.during, str(error), control.tail())
        return False
    finally:
        control.stop()
        cluster.rest()
    return True


def prepare() -> None:
    """All pods' and Services' addresses are this namespace's; one listener answers for all pods. Raises SystemExit in a
    namespace that is in use: all rules in it will be flushed."""
    if subprocess.run(["ip", "-oneline", "link", "show", "up"], check=True, capture_output=True).stdout:
        raise SystemExit("this is only for a new network namespace: use `python -m bench`")
    commands = ["link set lo up", "addr add 192.0.2.1/32 dev lo"]  # the latter to masquerade with
    commands += [f"route add local {net} dev lo" for net in ("10.96.0.0/12", "11.0.0.0/8")]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)
    pods = socket.create_server(("", 8080), backlog=4096)
    threading.Thread(target=_accept, args=[pods], daemon=True).start()


def _accept(listener: socket.socket) -> None:
    while True:
        listener.accept()[0].close()


def main(task: dict[str, Any]) -> None:
    subjects = [Subject(each["name"], tuple(each["argv"]), each["mode"]) for each in task["subjects"]]
    with tempfile.TemporaryDirectory(dir=task["directory"]) as directory:
        measure(Size.of(task["size"]), subjects, Plan(**task["plan"]), Path(directory))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
