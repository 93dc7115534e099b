"""`kube-proxy-nft explain FROM TO`: reads the objects once, answers, prints. Changes nothing."""

from __future__ import annotations

import argparse
import errno
from collections.abc import Iterable, Iterator

import msgspec
import structlog

from proxy import model
from proxy.config import load_config, node_name
from proxy.detect import interfaces
from proxy.detect.output import put
from proxy.errors import NoPermission, SourceError, UsageError
from proxy.events import Event, Replace
from proxy.explain import pods, show
from proxy.explain.answer import Answer, answer
from proxy.explain.question import questions
from proxy.explain.world import world
from proxy.model import NODE
from proxy.snapshot import Objects, from_api, from_manifests
from proxy.trouble import Trouble
from proxy.unread import Unread
from rules.dump import TableState
from rules.errors import KernelUnreachable
from rules.interpret_rule import NotUnderstood
from rules.kernel import Kernel
from rules.layout import LAYOUTS, TABLE_NAME
from rules.objects import Family

LOG = structlog.get_logger()


def run(options: argparse.Namespace) -> None:
    """Do what the options of `arguments` say. Raises UserError."""
    config = load_config(options.config)
    node = node_name(config, options.node)
    objects, known = _objects(options, node)
    if not options.manifests:  # of files, who reads them has told already
        _report(objects.unread)
    live = _tables() if options.live else {}
    here = world(config, node, _events(objects), _addresses() if options.live else ())
    answers = []
    for question in questions(here, options.source, options.target, known):
        try:
            answers.append(answer(here, question, live.get(question.packet.family)))
        except NotUnderstood as error:
            raise UsageError(
                f"table {question.packet.family.nft} {TABLE_NAME}",
                f"somebody has changed it: {error}",
                "restart the agent, which mends it, or leave --live out",
            ) from None
    put(as_json(answers) if options.output == "json" else "\n".join(map(show.text, answers)))


def as_json(answers: Iterable[Answer]) -> str:
    return msgspec.json.format(msgspec.json.encode(list(answers)), indent=2).decode() + "\n"


def _objects(options: argparse.Namespace, node: str) -> tuple[Objects, pods.Pods]:
    """All objects, and the pods that are asked about."""
    if options.manifests:
        found = from_manifests(options.manifests, lambda what, count: None, [node], None)
        return found, pods.of_manifests(options.manifests) if options.source.startswith("pod/") else {}
    from proxy.apiserver import Connection
    from proxy.detect.api_reader import ApiReader

    reader = ApiReader(Connection(options.kubeconfig or ""))
    found = from_api(reader, lambda what, count: None, [node], None)
    missing = [unread for unread in found.unread if unread.what in ("Services", "EndpointSlices")]
    if missing:
        raise SourceError(f"{found.source}: {missing[0].what}", missing[0].cause, missing[0].remedy)
    if not options.source.startswith("pod/"):
        return found, {}
    name = options.source.removeprefix("pod/")
    name = name if "/" in name else f"default/{name}"
    try:
        return found, pods.of_api(reader, name)
    except Trouble as trouble:
        raise SourceError(f"Pod {name}", trouble.cause, "see its name, or give its address") from None


def _events(objects: Objects) -> Iterator[Event]:
    for kind in (NODE, *(kind for kind in model.KINDS if kind != NODE)):
        yield Replace(kind, [model.decode(kind, raw) for raw in objects.items[kind]])


def _report(unread: Iterable[Unread]) -> None:
    for each in unread:
        LOG.warning("not_read", what=each.what, cause=each.cause, remedy=each.remedy)


def _tables() -> dict[Family, TableState]:
    try:
        kernel = Kernel()
        try:
            found = {family: kernel.dump(LAYOUTS[family].table) for family in Family}
        finally:
            kernel.close()
    except KernelUnreachable as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise NoPermission("nftables", str(error), "run as root, or leave --live out") from None
        raise
    if not any(found.values()):
        raise UsageError("--live", f"there is no table {TABLE_NAME} in this network namespace", "run it on the node")
    return {family: table or TableState() for family, table in found.items()}


def _addresses() -> set[bytes]:
    try:
        return set().union(*interfaces.addresses().values())
    except (OSError, ValueError) as error:
        remedy = "NodePorts may be missing from the answer: run it on the node, as root"
        LOG.warning("not_read", what="the addresses of this node's interfaces", cause=str(error), remedy=remedy)
        return set()
