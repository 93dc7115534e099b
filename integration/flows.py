"""Recorded flows: states of a cluster, who connects to which address, and what came of it. And how to run them anew.

A case is a JSON file: `config` is what differs from cluster.CONFIG; each of `steps` puts `objects`, deletes others
("Kind/name"), then names `flows`, with what was recorded: `reach` are all endpoints that answer ("address port"),
`source` says whether they see the client's own address (`preserved`) or another (`masqueraded`), `fails` how it ends
where nothing answers: `rejected` (refused at once), `dropped` (silence), `blocked` (the sending itself failed).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from integration.cluster import Cluster, Object, endpoint_slice, port, service
from integration.topology import Bed, Host
from integration.traffic import ask, endpoint, failure

SILENCE: Final = 0.7
"""Seconds after which nothing is taken for no answer."""

LEAST: Final = 24
MOST: Final = 240
"""Connections of a flow: LEAST, and up to MOST while an endpoint that should answer has not done so yet. LEAST alone would
miss one of four endpoints, which are drawn at random, in one of 250 flows (4 · 0.75^24); MOST never does (4 · 0.75^240)."""

_FAILURES: Final = {"refused": "rejected", "no answer": "dropped", "Operation not permitted": "blocked"}


@dataclass(frozen=True)
class Outcome:
    reach: frozenset[str]
    source: frozenset[str]
    fails: frozenset[str]


@dataclass(frozen=True)
class Flow:
    source: str
    to: str
    port: int
    protocol: str
    expected: Outcome

    def __str__(self) -> str:
        return f"{self.source} -> {endpoint(self.to, self.port)}/{self.protocol}"


@dataclass(frozen=True)
class Step:
    objects: Sequence[Object]
    deletes: Sequence[str]
    flows: Sequence[Flow]


@dataclass(frozen=True)
class Case:
    """sticky: all connections of one client to one address reach the same endpoint, whichever."""

    name: str
    config: Object
    node_labels: Mapping[str, str]
    sticky: bool
    steps: Sequence[Step]

    @property
    def agent(self) -> str:
        """Cases where this is equal can share an agent."""
        return json.dumps([self.config, self.node_labels], sort_keys=True)


def load(path: Path) -> Case:
    """Read a case from its file."""
    data = json.loads(path.read_text())
    steps = [Step(s["objects"], s["delete"], [_flow(f) for f in s["flows"]]) for s in data["steps"]]
    return Case(data["name"], data["config"], data["node_labels"], data["sticky"], steps)


def run(cluster: Cluster, case: Case, *, keep: bool = False) -> list[str]:
    """Go through the case's steps, with the flows of each. Returns what differs, as text. Leaves no objects, or those of
    the last step."""
    differences = []
    known: set[str] = set()
    try:
        for number, step in enumerate(case.steps):
            for reference in step.deletes:
                cluster.delete(*reference.split("/"))
            cluster.put(*step.objects)
            cluster.settle()
            known |= _endpoints(step.objects)
            # Who is gone from a later step must not answer in it, so only those that were recorded may.
            eligible = known if not number else {e for flow in step.flows for e in flow.expected.reach}
            with ThreadPoolExecutor(max(1, len(step.flows))) as pool:
                outcomes = pool.map(lambda flow: observe(cluster.bed, flow), step.flows)
                for flow, outcome in zip(step.flows, outcomes, strict=True):
                    if why := difference(flow.expected, outcome, eligible if case.sticky else None):
                        differences.append(f"{case.name}: step {number}: {flow}: {why}")
    finally:
        if not keep:
            cluster.clear()
            cluster.settle()
    return differences


def set_apart(case: Case, number: int) -> Case:
    """The case with names, NodePorts and external addresses that no other case has. number: below 100."""
    node_ports = re.compile(r"\b(300|301|302)(\d\d)\b")
    external = re.compile(r"\b(192\.0\.2|198\.51\.100)\.(\d+)\b")

    def change(text: str) -> str:
        text = node_ports.sub(lambda m: str(30200 + number * 20 + int(m[2]) % 20), text)
        return external.sub(lambda m: f"{m[1].split('.')[0]}.{51 + number}.100.{m[2]}", text)

    def obj(data: Object) -> Object:
        made = json.loads(change(json.dumps(data)))
        meta = made["metadata"]
        meta["name"] += f"-of-{number}"
        labels = meta.get("labels") or {}
        if "kubernetes.io/service-name" in labels:
            labels["kubernetes.io/service-name"] += f"-of-{number}"
        return made  # type: ignore[no-any-return]

    steps = []
    for step in case.steps:
        flows = [dataclasses.replace(flow, to=change(flow.to), port=int(change(str(flow.port)))) for flow in step.flows]
        deletes = [f"{reference}-of-{number}" for reference in step.deletes]
        steps.append(dataclasses.replace(step, objects=[obj(o) for o in step.objects], deletes=deletes, flows=flows))
    return dataclasses.replace(case, steps=steps)


def bystander(number: int) -> tuple[Object, Object]:
    """A Service of no case's, with three endpoints, and its slice."""
    name, address = f"bystander-{number}", f"10.104.{number // 250}.{number % 250 + 1}"
    pods = {
        f"10.250.{number // 250}.{number % 250 + 1}": "node2",
        f"10.251.{number // 250}.{number % 250 + 1}": "node3",
    }
    return service(name, [address], port("", 80)), endpoint_slice(name, name, pods, port("", 8080))


def observe(bed: Bed, flow: Flow) -> Outcome:
    """Send the flow's connections."""
    source = _host(bed, flow.source)
    reach: set[str] = set()
    sources: set[str] = set()
    fails: set[str] = set()
    for count in range(1, MOST + 1):
        try:
            answer = ask(source, flow.to, flow.port, flow.protocol, timeout=SILENCE)
        except OSError as error:
            name = failure(error)
            fails.add(_FAILURES.get(name, name))
        else:
            reach.add(answer.endpoint)
            sources.add("preserved" if answer.seen == answer.own else "masqueraded")
        if (fails and count > 1) or (count >= LEAST and reach >= flow.expected.reach):
            break
    return Outcome(frozenset(reach), frozenset(sources), frozenset(fails))


def difference(expected: Outcome, got: Outcome, sticky: set[str] | None = None) -> str:
    """Why the outcome is not as expected, or ''. sticky: the endpoints of which any one will do."""
    if not _fail_alike(expected.fails, got.fails):
        return f"fails {_words(got.fails)}, not {_words(expected.fails)}"
    if sticky is not None:
        if len(got.reach) != len(expected.reach) or not got.reach <= sticky:
            return f"reached {_words(got.reach)}, not {len(expected.reach)} of {_words(sticky)}"
        return ""
    if got.reach != expected.reach:
        return f"reached {_words(got.reach)}, not {_words(expected.reach)}"
    if got.source != expected.source:
        return f"source {_words(got.source)}, not {_words(expected.source)}"
    return ""


def _fail_alike(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether a packet of the node's own is refused or lost, the kernel may tell its sender at once: `blocked`."""
    return one == other or bool("blocked" in one | other and one and other)


def _flow(data: Mapping[str, Any]) -> Flow:
    reach = frozenset(endpoint(*words.split()) for words in data["reach"])
    outcome = Outcome(reach, frozenset(data["source"]), frozenset(data["fails"]))
    return Flow(data["from"], data["to"], data["port"], data["protocol"], outcome)


def _endpoints(objects: Sequence[Object]) -> set[str]:
    slices = [obj for obj in objects if obj["kind"] == "EndpointSlice"]
    return {endpoint(e["addresses"][0], p["port"]) for s in slices for e in s["endpoints"] for p in s["ports"]}


def _host(bed: Bed, name: str) -> Host:
    return {
        "external": bed.client,
        "external2": bed.client2,
        "pod-l1": bed.pod1,
        "pod-l2": bed.pod2,
        "pod-remote": bed.pod3,
        "host": bed.node,
    }[name]


def _words(words: frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(words)) or "nothing"
