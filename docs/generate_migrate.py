"""docs/migrate-v1.schema.json from the report's types: python -m docs.generate_migrate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from proxy.migrate.report import API_VERSION, KIND, Report, Result, Severity

SCHEMA: Final = Path(__file__).with_name("migrate-v1.schema.json")

ABOUT: Final = {
    "Report": {
        "": "What would change on one node with kube-proxy-nft in kube-proxy's place. All fields are always there; later"
        " versions may add some.",
        "verdict": "The worst of the findings and of the comparison says it.",
        "exitCode": "Of the command that makes this report.",
        "reasons": "For people: why the verdict is not better, the weightiest first.",
        "node": "Its name.",
        "made": "When, as RFC 3339.",
        "madeBy": "Program and version.",
        "clusterVersion": "Of Kubernetes; '' if it is not known.",
        "source": "Where the objects come from, for people.",
        "present": "The proxy that runs now.",
        "compared": "Whether there were rules to compare with. If not, the result of all services is not-compared.",
        "counts": "How many there are of what.",
        "proof": "What the kernel said to the ruleset.",
        "findings": "What to know, to decide, or to do.",
        "services": "The comparison, Service by Service.",
        "plan": "How to switch, and back.",
        "gaps": "What could not be read, so that the report does not cover it.",
        "apiVersion": "Of this schema.",
        "kind": "Of this document.",
    },
    "Present": {
        "": "The kube-proxy that runs now.",
        "mode": "iptables, ipvs, nftables; '' if it is not known.",
        "modeIsSet": "Whether its configuration names the mode.",
        "version": "Of its image or binary; '' if it is not known.",
        "source": "Where its configuration was read.",
        "dataplanes": "Modes whose rules are in the kernel.",
    },
    "Counts": {
        "": "How many there are of what. Of a part that may not be read nothing is counted: see gaps.",
        "services": "Services, with those that only the kernel's rules know.",
        "servicePorts": "Ports of Services.",
        "endpoints": "Endpoints of Services.",
        "entries": "Addresses, with protocol and port, that lead to endpoints.",
        "results": "Result: number of Services.",
        "severities": "Severity: number of findings.",
    },
    "Proof": {
        "": "The ruleset was loaded into a network namespace of its own, which was thrown away.",
        "status": "not-tried: detail says why.",
        "detail": "What the kernel refused, or why it was not asked; '' otherwise.",
        "kernel": "As uname -r says; '' if it was not asked.",
        "elements": "Of maps and sets.",
        "bytes": "Of the netlink messages.",
        "milliseconds": "That the commit took.",
    },
    "Finding": {
        "": "Something to know, to decide, or to do.",
        "check": "Identifier of the check, as in docs/migrate-checks.md; stays the same between versions.",
        "severity": "blocker: do not switch. change: something has to be done, or decided, before. notice: it behaves"
        " differently, and most will not mind. info: worth knowing.",
        "title": "One line for people.",
        "why": "What it rests on and what follows.",
        "remedy": "What to do.",
        "objects": "What it is about, such as 'Service default/web', 'NodePort 30080/TCP', 'chain ip filter FORWARD': the"
        " first 1,000.",
        "count": "How many objects there are in all.",
        "kep": "The Kubernetes enhancement proposal behind it; '' if there is none.",
    },
    "ServiceRow": {
        "": "A Service, and how it comes out.",
        "service": "namespace/name; what the kernel's rules call it where no such Service is known.",
        "type": "As in its spec; '' where there is no such Service.",
        "result": "The worst of its entries'.",
        "entries": "Its addresses.",
    },
    "EntryRow": {
        "": "One address of a Service's port.",
        "address": "Such as '10.96.0.10:53/UDP', '[fd00::10]:53/UDP', 'NodePort 30080/TCP (IPv4)'.",
        "port": "namespace/name:port, as far as it is known.",
        "result": "same: nothing changes. not-compared: what there is could not be read, or not all of it. behaviour: the same"
        " endpoints, otherwise treated differently. endpoints: it leads to others. only-there: kube-proxy serves it, kube-proxy-nft would not. only-here: the other way round.",
        "endpoints": "Where it leads: with kube-proxy-nft, or with kube-proxy where only that has it.",
        "differences": "What differs.",
    },
    "Difference": {
        "": "One way in which an address is treated differently.",
        "what": "endpoints, outside-endpoints (for clients that are no pods), affinity, sources (who may use it), scheduler,"
        " source-address (whether the client's is kept), refusal (what happens without endpoints), weights (of endpoints),"
        " rules (something is wrong with them: the finding rules-damaged says what).",
        "there": "What kube-proxy does now; '' for nothing.",
        "here": "What kube-proxy-nft would do; '' for nothing.",
        "check": "Identifier of the finding that explains it; '' where none does: kube-proxy's rules are stale, or damaged.",
    },
    "Plan": {
        "": "Steps in their order.",
        "platform": "What this node is; '' if that is not known. The commands of all platforms are there.",
        "before": "Once, for the cluster.",
        "node": "For each node, one after the other.",
        "after": "Once, when all nodes are switched.",
        "back": "The way back, for each node.",
    },
    "Step": {
        "": "One step of the plan.",
        "title": "What it does.",
        "why": "Why, and what happens meanwhile.",
        "commands": "Platform: what to type. Platforms: any (the same for all), kubeadm, k3s (and RKE2), daemonset.",
    },
    "Gap": {
        "": "Something that could not be read.",
        "what": "What it is.",
        "cause": "Why not.",
        "remedy": "What to do about it; '' if nothing can be done.",
    },
}


def schema() -> bytes:
    made: dict[str, Any] = msgspec.json.schema(Report)
    for name, definition in made["$defs"].items():
        about = ABOUT[name]
        definition["description"] = about[""]
        definition["required"] = list(definition["properties"])
        for field, properties in definition["properties"].items():
            properties.pop("default", None)
            if "$ref" in properties:  # what stands beside a reference is its own
                definition["properties"][field] = properties = {"$ref": properties["$ref"]}
            properties["description"] = about[field]
    report = made["$defs"]["Report"]["properties"]
    report["apiVersion"]["const"], report["kind"]["const"] = API_VERSION, KIND
    counts = made["$defs"]["Counts"]["properties"]
    counts["results"]["propertyNames"] = {"enum": sorted(Result.__args__)}  # type: ignore[attr-defined]
    counts["severities"]["propertyNames"] = {"enum": sorted(Severity.__args__)}  # type: ignore[attr-defined]
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": KIND, **made}
    return (json.dumps(made, indent=2, ensure_ascii=False) + "\n").encode()


if __name__ == "__main__":
    SCHEMA.write_bytes(schema())
