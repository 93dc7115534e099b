"""Cases for the checks of a migration report: facts with one thing in them, and a table's row."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from proxy.detect.evidence import Place
from proxy.migrate import checks, ours
from proxy.migrate.case import Case
from proxy.migrate.compare import compare
from proxy.migrate.entries import Beside, Dataplane, Entry
from proxy.migrate.facts import Facts, Interface, Listener, NodeFacts
from proxy.migrate.report import Finding, Proof
from proxy.unread import Unread
from tests.migrate_facts import ETH0, facts, live
from tests.objects import Object, endpoint_slice, service

ACCEPTED = Proof("accepted")
V4, V6 = bytes(4), bytes(16)


def findings_of(made: Facts, proof: Proof = ACCEPTED) -> list[Finding]:
    read = ours.read(made)
    return checks.findings(Case(made, read, compare(made, read), proof))


def here(*interfaces: Interface, **more: Any) -> NodeFacts:
    return NodeFacts(kernel="6.1.0", interfaces=(ETH0, *interfaces), **more)


def packed(*texts: str) -> tuple[bytes, ...]:
    return tuple(ipaddress.ip_address(text).packed for text in texts)


WEB = (service("web", "10.96.0.1"), endpoint_slice("web", "10.244.0.2", "10.244.1.2"))
NODE_PORT = (
    service("np", "10.96.0.2", type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}]),
    endpoint_slice("np", "10.244.0.3"),
)
NODE_PORT_UDP = (
    service(
        "np", "10.96.0.2", type="NodePort", ports=[{"name": "dns", "port": 53, "nodePort": 30053, "protocol": "UDP"}]
    ),
    endpoint_slice("np", "10.244.0.3"),
)
STICKY = (service("sticky", "10.96.0.4", sessionAffinity="ClientIP"), endpoint_slice("sticky", "10.244.0.3"))
KUBE_IPVS = Interface("kube-ipvs0", packed("10.96.0.1", "10.96.0.10"))
SECOND = Interface("eth1", packed("192.168.78.2"))


def balanced(**spec: Any) -> Object:
    ingress = {"ingress": [{"ip": spec.pop("ip", "198.51.100.1")}]}
    return service("lb", "10.96.0.3", type="LoadBalancer", **spec) | {"status": {"loadBalancer": ingress}}


def running(*objects: Object, mode: Any = "ipvs", scheduler: str = "rr", change: Any = None, **more: Any) -> Facts:
    """With the mode's rules in the kernel. change: of each entry. all_addresses: NodePorts at all of the node's."""
    all_addresses = more.pop("all_addresses", False)
    localhost = more.pop("localhost", False)
    mark = more.pop("mark", 0)
    made = facts(*objects, mode=mode, **more)
    given = {"nodeport_addresses": None} if all_addresses else {}
    dataplane = live(made, mode, scheduler, masquerade_mark=mark, localhost_nodeports=localhost, **given)
    if change:
        dataplane = replace(dataplane, entries=tuple(change(entry) for entry in dataplane.entries))
    made.dataplanes = (dataplane,)
    return made


def remarked(made: Facts, *remarks: Unread) -> Facts:
    """With remarks on the only dataplane."""
    made.dataplanes = (replace(made.dataplanes[0], remarks=remarks),)
    return made


def beside(made: Facts, **what: Any) -> Facts:
    """With this beside the entries of the only dataplane."""
    made.dataplanes = (replace(made.dataplanes[0], beside=Beside(**what)),)
    return made


def blind(made: Facts) -> Facts:
    """Of the only dataplane nothing could be read."""
    unread = Unread("iptables rules", "no permission", "run it as root")
    made.dataplanes = (replace(made.dataplanes[0], entries=(), unread=(unread,)),)
    return made


def nothing_there(made: Facts) -> Facts:
    """The only dataplane was read, and has nothing."""
    made.dataplanes = (replace(made.dataplanes[0], entries=()),)
    return made


def another(made: Facts, *dataplanes: Dataplane) -> Facts:
    made.dataplanes = (*made.dataplanes, *dataplanes)
    return made


def unlisted(made: Facts, kind: str) -> Facts:
    del made.objects[kind]
    return made


def raw(made: Facts, kind: str, text: bytes) -> Facts:
    made.objects[kind].append(msgspec.Raw(text))
    return made


def told(*evidence: Any, **more: Any) -> Facts:
    return facts(*WEB, evidence=evidence, **more)


def connected(entry: Entry) -> Entry:
    return replace(entry, connections=2)


PLACE = Place("ipvs", "netlink", node="node0")
FILE = Place("file", "/var/lib/kube-proxy/config.conf", node="node0")
ALL_PORTS = [Listener("TCP", V4, port, "sshd") for port in (22,)]
EIGHTY = [Listener("TCP", V4, 80, "nginx")]


class Row(NamedTuple):
    """check: the identifier. fires, silent: facts with and without it. severity, words: of the finding that is made."""

    check: str
    severity: str
    words: str
    fires: Callable[[], Facts]
    silent: Callable[[], Facts]


def fewer_addresses() -> Facts:
    """NodePorts are to answer at all addresses, and the rules have one."""
    made = running(
        *NODE_PORT, mode="iptables", here=here(SECOND), config={"nodePortAddresses": ["192.168.0.0/16", "fd77::/64"]}
    )
    made.dataplanes = (replace(made.dataplanes[0], nodeport_addresses=packed("192.168.77.2", "fd77::2")),)
    return made


def without_object(made: Facts, kind: str) -> Facts:
    made.objects[kind] = []
    return made


def all_text(finding: Finding) -> str:
    return "\n".join((finding.title, finding.why, finding.remedy, finding.kep, *finding.objects))
