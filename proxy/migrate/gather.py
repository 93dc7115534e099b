"""All that a migration report is made of, gathered: from a node, a pod or a workstation. Reads, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from proxy import __version__, snapshot
from proxy import config_values as values
from proxy.addresses import Network
from proxy.detect import cluster, interfaces, processes, proxy_ports
from proxy.detect import live as detect_live
from proxy.detect import node as detect_node
from proxy.detect.api_reader import ApiReader
from proxy.detect.evidence import ConfiguredMode, Evidence, Kernel, Unreadable, Version
from proxy.detect.host import gather_host
from proxy.detect.host_files import HostFiles
from proxy.detect.judge import version_of
from proxy.detect.objects import read_objects
from proxy.detect.scope import Scope
from proxy.detect.versions import NEWEST
from proxy.detect.versions import parse as parse_version
from proxy.errors import SourceError
from proxy.migrate import access, identity, listeners, live, node_facts, present_cluster, present_host
from proxy.migrate.configuration import usable
from proxy.migrate.entries import Dataplane
from proxy.migrate.facts import Facts, NodeFacts, PresentProxy
from proxy.migrate.given_config import read_given
from proxy.migrate.identity import Machine
from proxy.migrate.present import Found
from proxy.migrate.present_host import OnHost
from proxy.nodes import read_node
from proxy.snapshot import Objects, Progress
from proxy.unread import Unread

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
METRICS_PORT: Final = 10249
_ELSEWHERE: Final = (
    "run it on that node, in a pod with hostNetwork: true (`migrate collect` makes a bundle there), or say --here if this"
    " is the node"
)


class Wanted(Struct, frozen=True):
    """What the command line says. node: the name of the Node, '' where it is to be found out. root: where the machine's
    file system is. here: this machine is that node, whatever its addresses say."""

    kubeconfig: str = ""
    manifests: str = ""
    config: str = ""
    node: str = ""
    root: str = "/"
    here: bool = False


def gather(
    wanted: Wanted,
    *,
    connect: access.Connect,
    environment: Mapping[str, str] = os.environ,
    progress: Progress = lambda what, count: None,
) -> Facts:
    """Raises UserError where there is nothing to report on: the source of objects cannot be used at all, the configuration
    that was given cannot be read."""
    return _Gathering(wanted, connect, environment, progress).facts()


class _Gathering:
    def __init__(
        self, wanted: Wanted, connect: access.Connect, environment: Mapping[str, str], progress: Progress
    ) -> None:
        self._wanted, self._connect, self._environment, self._progress = wanted, connect, environment, progress
        self._files = HostFiles(Path(wanted.root))
        self._running = processes.scan(_proc(wanted.root))
        self._unread: list[Unread] = []
        self._evidence: list[Evidence] = []
        self._reader: ApiReader | None = None

    def facts(self) -> Facts:
        given = read_given(self._wanted.config) if self._wanted.config else None
        self._progress("this machine", 0)
        host = present_host.starting(self._files, self._running)
        machine = self._machine(host.found if host else None, given)
        names = [self._wanted.node] if self._wanted.node else [*_override(given), *machine.names]
        found = self._node(names, machine, host)
        name = found.node.metadata.name if found.node else names[0]
        reason = "" if self._wanted.here else identity.why_not(found.node, name, found.boot, machine)
        look = None if reason else live.Look()
        self._objects(found)
        self._unread += found.unread
        self._ask_cluster(name)
        if look:
            self._progress("the rules in the kernel", 0)
            look.wait()  # what the detector reads can be as large as what that has read: not both at once
            self._ask_machine(name)
        present = self._present(name, given, host if not reason else None, reason)
        here, dataplanes = self._here(look, present, found) if look else (self._elsewhere(name, reason), [])
        return Facts(
            name,
            datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            f"kube-proxy-nft {__version__}",
            present,
            found.items,
            here,
            tuple(dataplanes),
            tuple(self._evidence),
            tuple(dict.fromkeys(self._unread)),
            self._cluster_version(),
            found.source,
        )

    # -- Where things are ----------------------------------------------------------------------------------------------

    def _machine(self, found: Found | None, given: Found | None) -> Machine:
        """given: the configuration that --config names; its hostnameOverride and --node together name this machine."""
        both = [name for name in _override(given) if name == self._wanted.node]
        names = [self._environment.get("NODE_NAME", ""), *_override(found), *both, os.uname().nodename]
        try:
            addresses = frozenset().union(*interfaces.addresses().values())
        except (OSError, ValueError):
            addresses = frozenset()
        lower = (name.strip().lower() for name in names)
        return Machine(tuple(dict.fromkeys(filter(None, lower))), addresses, _boot())

    def _node(self, names: Sequence[str], machine: Machine, host: OnHost | None) -> Objects:
        """The Node; of manifests, all objects."""
        choose = None if self._wanted.node else lambda nodes: identity.choose(nodes, machine)
        if self._wanted.manifests:
            return snapshot.from_manifests(self._wanted.manifests, self._progress, names, choose)
        transport = access.connect(self._wanted.kubeconfig, self._environment, host, self._files, self._connect)
        self._reader = ApiReader(transport)
        self._progress(f"API server {self._reader.server}", 0)
        version = cluster.cluster_version(self._reader)
        if self._reader.is_gone and isinstance(version, Unreadable):
            raise SourceError(self._reader.server, version.cause, version.remedy)
        self._evidence.append(version)
        return snapshot.node_from_api(self._reader, self._progress, names, choose)

    def _objects(self, found: Objects) -> None:
        """The rest of them, from the API server."""
        if self._reader is None:
            return
        before = len(found.unread)
        snapshot.add_from_api(self._reader, self._progress, found)
        if self._reader.is_gone or (found.unread and not any(found.items.values())):
            first = [*found.unread[before:], *found.unread][0]
            raise SourceError(
                self._reader.server, f"nothing can be learned from it: {first.what}: {first.cause}", first.remedy
            )

    # -- What the detector sees ----------------------------------------------------------------------------------------

    def _ask_cluster(self, name: str) -> None:
        if self._reader is None or self._reader.is_gone:
            return
        self._progress("kube-proxy in the cluster", 0)
        found = cluster.gather(self._reader, read_objects, name)
        self._evidence += [item for item in found if item not in self._evidence]

    def _ask_machine(self, name: str) -> None:
        self._progress("kube-proxy on this machine", 0)
        found = [
            *gather_host(Path(self._wanted.root), name, self._running),
            *detect_live.gather(name, proxy_urls=_urls(), running=self._running),
        ]
        kube_proxy = any(process.program in ("kube-proxy", "k3s", "rke2", "kubelite") for process in self._running)
        mine = detect_node.with_ours(found, is_ours_here=False, is_kube_proxy_here=kube_proxy)
        theirs = (item for item in self._evidence if not isinstance(item, Kernel))  # this machine knows its own
        self._evidence = [*mine, *theirs]

    # -- The present proxy ---------------------------------------------------------------------------------------------

    def _present(self, name: str, given: Found | None, host: OnHost | None, elsewhere: str) -> PresentProxy:
        found = given or (host.found if host else None)
        if found is None and self._reader is not None:
            found = present_cluster.in_cluster(self._reader, self._evidence, name)
        if found is None and not elsewhere:
            left = present_host.left_over(self._files)
            found = left.found if left else None
        if found is None:
            self._unread += self._no_configuration()
            found = Found({}, "")
        self._unread += found.unread
        document, unread = usable(found.document, found.source) if found.document else ({}, [])
        self._unread += unread
        mode = "" if given is None else str(document.get("mode") or "iptables")
        return PresentProxy(
            mode=mode or self._mode(name) or str(document.get("mode") or ("iptables" if document else "")),
            mode_is_set=bool(document.get("mode")),
            document=document,
            source=found.source,
            version=self._proxy_version(name),
            refused=found.refused,
            unknown=tuple(found.unknown),
        )

    def _no_configuration(self) -> list[Unread]:
        remedy = "give it with --config"
        if self._reader is None:
            return [Unread("configuration of the present kube-proxy", "none was found on this machine", remedy)]
        refused = [
            e for e in self._evidence if isinstance(e, Unreadable) and e.place.kind in ("api-server", "configmap")
        ]
        return [
            present_cluster.unread(self._reader),
            *(
                Unread(f"{e.place.part or e.place.name} (for kube-proxy's configuration)", e.cause, e.remedy)
                for e in refused
            ),
        ]

    def _mode(self, name: str) -> str:
        here = tuple(item for item in self._evidence if item.place.node == name)
        rest = tuple(item for item in self._evidence if item.place.node == "")
        version = parse_version(version_of(self._evidence)) or NEWEST
        return Scope(name, here, rest, version).mode()

    def _proxy_version(self, name: str) -> str:
        found = [e for e in self._evidence if isinstance(e, Version) and e.place.node in ("", name)]
        for of in ("kube-proxy", "kubelet"):
            versions = [e.version for e in found if e.of == of and (of == "kube-proxy" or "+" in e.version)]
            if versions:
                return versions[0]
        return ""

    def _cluster_version(self) -> str:
        return next((e.version for e in self._evidence if isinstance(e, Version) and e.of == "cluster"), "")

    # -- The node ------------------------------------------------------------------------------------------------------

    def _elsewhere(self, name: str, reason: str) -> NodeFacts:
        what = f"node {name} from inside: its live rules, interfaces, sockets, sysctls"
        self._unread.append(Unread(what, reason, _ELSEWHERE))
        kernels = [e.release for e in self._evidence if isinstance(e, Kernel) and e.place.node == name]
        facts = node_facts.elsewhere(kernels[0] if kernels else "")
        return msgspec.structs.replace(facts, platform=self._platform(name, ""))

    def _here(self, look: live.Look, present: PresentProxy, found: Objects) -> tuple[NodeFacts, list[Dataplane]]:
        self._progress("the rules in the kernel", 0)
        look.wait()
        self._unread += look.unread
        self._progress("the node", 0)
        facts, unread = node_facts.read(self._files, self._running, look.chains, look.others, _pods(present, found))
        self._unread += unread
        platform = self._platform(found.node.metadata.name if found.node else "", facts.platform)
        return msgspec.structs.replace(facts, missing_features=look.features, platform=platform), look.dataplanes

    def _platform(self, name: str, known: str) -> str:
        if known:
            return known
        version = f"{self._cluster_version()} {self._proxy_version(name)}"
        for program in ("k3s", "rke2"):
            if f"+{program}" in version:
                return program
        said = [e for e in self._evidence if isinstance(e, ConfiguredMode) and not e.overridden]
        if any(e.place.kind == "configmap" and e.place.part.startswith("config.conf") for e in said):
            return "kubeadm"
        return "daemonset" if any(e.place.kind in ("daemonset", "configmap") for e in said) else ""


def _override(found: Found | None) -> list[str]:
    """The node's name, if a configuration says it."""
    name = str(found.document.get("hostnameOverride") or "").strip().lower() if found else ""
    return [name] if name and "$(" not in name else []


def _pods(present: PresentProxy, found: Objects) -> list[Network]:
    """The ranges that pods are in, as far as they are known."""
    networks: list[Network] = []
    try:
        cidr = values.cluster_cidr(present.document.get("clusterCIDR"))
        networks += [network for network in (cidr.v4, cidr.v6) if network] if cidr else []
    except values.BadValue:
        pass
    if not networks and found.node:
        networks += read_node(found.node)[0].pod_cidrs
    return networks


def _urls() -> list[str]:
    """Where a kube-proxy may say its mode. Nobody is asked where nobody listens: a connection leaves traces, if small ones."""
    there = {one.port for one in listeners.read(proc=Path("/nonexistent")) if one.protocol == "TCP"}
    return [url for url in proxy_ports.URLS if METRICS_PORT in there]


def _proc(root: str) -> Path:
    """Where processes are: the machine's own /proc, if that is under its root."""
    inside = Path(root, "proc")
    return inside if (inside / "thread-self").exists() else Path("/proc")


def _boot() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
