"""Node objects as evidence: their kernels and versions, and what k3s and RKE2 write into them. Pure.

Both keep the arguments of their server or agent, those of their configuration files too, in an annotation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from proxy.detect import k3s
from proxy.detect.evidence import Evidence, Kernel, Place, Unreadable, Version
from proxy.detect.words import words
from proxy.detect.yaml_lines import Value
from proxy.model import DECODE_ERRORS

_ARGUMENTS: Final = {"k3s": "k3s.io/node-args", "rke2": "rke2.io/node-args"}


def read(items: Sequence[Value], place: Callable[..., Place]) -> list[Evidence]:
    """place: as objects makes it."""
    found: list[Evidence] = []
    distribution: list[Evidence] = []
    off = False
    for item in items:
        name = item.text("metadata", "name")
        at = place("node", "Node", item, node=name)
        info = item.get("status", "nodeInfo")
        if info is not None and info.text("kubeletVersion"):
            found.append(Version(place=at, version=info.text("kubeletVersion"), of="kubelet"))
        if info is not None and info.text("kernelVersion") and info.text("operatingSystem") != "windows":
            found.append(Kernel(place=at, release=info.text("kernelVersion")))
        for program, annotation in _ARGUMENTS.items():
            arguments = item.get("metadata", "annotations", annotation)
            if arguments is not None:
                there = msgspec.structs.replace(at, part=annotation, line=arguments.line)
                evidence = read_arguments(program, arguments.text(), there)
                # One server's --disable-kube-proxy holds for all nodes.
                off = off or any(isinstance(e, Unreadable) and e.harmless for e in evidence)
                distribution += evidence
    return found if off else found + distribution


def read_arguments(program: str, arguments: str, place: Place) -> list[Evidence]:
    """The annotation's value. program: "k3s" or "rke2"."""
    try:
        texts = msgspec.json.decode(arguments, type=list[str])
    except DECODE_ERRORS:
        return [Unreadable(place=place, cause="the annotation is no list of arguments", remedy="see it on the node")]
    layer, _ = k3s.from_command(words(texts[1:]), place)

    def config(path: str) -> list[Evidence]:
        cause = "kube-proxy's --config is a file of the node"
        return [Unreadable(place=place, cause=cause, remedy=f"run this on the node, or give {path} with --config")]

    return k3s.read(program, [layer], config, place)
