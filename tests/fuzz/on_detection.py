"""What the detector reads: files of any kind, objects, command lines, answers of servers. Nothing of it may stop it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from proxy import instance
from proxy.detect import (
    cluster,
    flag_files,
    objects,
    processes,
    proxy_config,
    proxy_ports,
    report,
    shell,
    units,
    versions,
)
from proxy.detect.api_reader import ApiReader
from proxy.detect.command_line import read_command
from proxy.detect.evidence import Evidence, Place
from proxy.detect.files import read_file
from proxy.detect.judge import judge
from proxy.detect.launch import in_script, launches
from proxy.detect.node_table import as_table
from proxy.detect.words import Word, words
from proxy.detect.yaml_lines import DEPTH, Value, read_yaml
from proxy.trouble import UNREACHABLE, Trouble
from tests import cluster_api
from tests.fuzz import corpus
from tests.fuzz.hunt import Target
from tests.fuzz.on_objects import BOMB, JSON_TOKENS, YAML_TOKENS, bits
from tests.fuzz.trees import JSON, YAML, dump_json

PLACE: Final = Place("file", "a")
_NAMES: Final = (
    "config.conf", "/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/config.yaml.d/x.yaml", "/etc/default/kube-proxy", "start.sh",
    "/etc/systemd/system/kube-proxy.service", "/etc/systemd/system/k3s.service.d/a.conf", "kube-proxy.bat", "-", "",
)  # fmt: skip

# -- Files -------------------------------------------------------------------------------------------------------------


class _Machine:
    """Every file of it is the same."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, path: str) -> bytes:
        if path.endswith("x"):
            raise FileNotFoundError(2, "No such file or directory")
        return self._data

    def names(self, directory: str) -> list[str]:
        return ["a.yaml", "x.yml"]


def _check_file(data: bytes) -> None:
    rand = bits(data)
    machine = rand.choice((None, _Machine(data)))
    evidence = read_file(
        rand.choice(_NAMES), data, node=rand.choice(("", "a")), expected=rand.random() < 0.5, machine=machine
    )
    _is_reported(evidence)


def _is_reported(evidence: Sequence[Evidence]) -> None:
    """It can be judged and shown, and shown evidence is no command to a terminal."""
    assert len(set(evidence)) <= len(evidence)
    found = judge(evidence, "1.37")
    text = report.as_text(found)
    assert not any(c in text for c in "\x1b\x07\x9b") and text.encode()
    assert json.loads(report.as_json(found)) and as_table(found).encode()


def _files() -> list[bytes]:
    return [*corpus.files("detect/*/*", "config/*").values(), BOMB]


def _check_yaml(data: bytes) -> None:
    text = data.decode(errors="replace")
    documents, faults = read_yaml(text)
    last = len(text.splitlines()) + 1
    assert all(1 <= fault.line <= last and fault.cause for fault in faults)
    waiting: list[tuple[Value, int]] = [(document, 0) for document in documents]
    seen = 0
    while waiting and seen < 10_000:
        value, depth = waiting.pop()
        seen += 1
        assert 1 <= value.line <= last and depth <= 2 * DEPTH
        inside = (
            value.data if isinstance(value.data, list) else value.data.values() if isinstance(value.data, dict) else ()
        )
        waiting += [(item, depth + 1) for item in inside]
    proxy_config.read_text(text, PLACE, expected=True)
    proxy_config.read_as_kube_proxy(text, PLACE)


def _check_script(data: bytes) -> None:
    """Shell scripts, unit files, files with variables and with flags."""
    text = data.decode(errors="replace")
    for counts_lines in (False, True):
        script = Word(text, msgspec.structs.replace(PLACE, line=1))
        for command in shell.commands(script, {"A": Word("x y"), "B": None}, counts_lines=counts_lines):
            assert all(isinstance(word.text, str) for word in command)
    list(in_script(Word(text), {}))
    launches(words(text.split()), {})
    flag_files.environment(text, PLACE)
    read_command(flag_files.flag_words(text, PLACE), PLACE, lambda _: [])
    settings = units.parse(text, PLACE)
    for machine in (None, _Machine(data)):
        _is_reported(units.read(settings, PLACE, machine))
    processes.identify(text.split("\0"))
    with suppress(KeyError):
        versions.show(versions.parse(text) or (0, 0))
    versions.parse_kernel(text)


def _scripts() -> list[bytes]:
    found = corpus.files("detect/flags/*", "detect/k3s/*", "detect/tools/*")
    chosen = [data for name, data in found.items() if not name.endswith((".yaml", ".json"))]
    return [*chosen, b'#!/bin/sh\nA=ipvs; B="$A $A"\nexec kube-proxy --proxy-mode=${B:-x} <<EOF\n$(x)\nEOF\n']


# -- Objects -----------------------------------------------------------------------------------------------------------


def _check_objects(data: bytes) -> None:
    with suppress(ValueError, RecursionError):
        items = json.loads(data)
        listed = [item for item in (items if isinstance(items, list) else [items]) if isinstance(item, Mapping)]
        _is_reported(objects.read_objects(listed))


def _cluster() -> list[dict[str, Any]]:
    owner = cluster_api.daemonset()
    pods = [cluster_api.pod_of(owner, name) for name in ("a", "b")]
    return [
        owner,
        cluster_api.config_map(cluster_api.config("ipvs", "ipvs: {strictARP: true}")),
        *pods,
        cluster_api.static_pod("a", "--proxy-mode=ipvs"),
        cluster_api.node("a"),
        cluster_api.node("b", system="windows"),
    ]


def _objects() -> list[bytes]:
    kept = [data for name, data in corpus.files("detect/*/*").items() if name.endswith(".json")]
    return [dump_json(_cluster()), *map(dump_json, _cluster()), *kept]


class _Server:
    """Answers what the data say: a mapping of parts of paths to bodies."""

    server = "192.0.2.1:6443"

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers
        self._left = 50

    @contextlib.contextmanager
    def get(self, path: str, *, read_timeout: float, compressed: bool = False) -> Iterator[cluster_api.Answer]:
        self._left -= 1
        if self._left < 0:
            raise Trouble(UNREACHABLE, "enough")
        body = next((body for part, body in self._answers.items() if part in path), None)
        status = body.pop("code", 200) if isinstance(body, dict) and isinstance(body.get("code", 200), int) else 200
        yield cluster_api.Answer(status, dump_json(body))


def _check_cluster(data: bytes) -> None:
    try:
        answers = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(answers, dict):
        for node in ("", "a"):
            reader = ApiReader(_Server(answers), sleep=lambda _: None, rand=lambda: 0.5)
            _is_reported(cluster.gather(reader, objects.read_objects, node))


def _answers() -> list[bytes]:
    whole = _cluster()
    of = {kind: [item for item in whole if item["kind"] == kind] for kind in ("DaemonSet", "Pod", "Node")}
    lists = {kind: {"kind": f"{kind}List", "metadata": {}, "items": items} for kind, items in of.items()}
    answers = {
        "/version": {"gitVersion": "v1.36.2"},
        "/daemonsets": lists["DaemonSet"],
        "/pods": lists["Pod"],
        "/nodes": lists["Node"],
        "/configmaps": whole[1],
    }
    refused = {"code": 403, "kind": "Status", "message": "forbidden"}
    return [dump_json(answers), dump_json({**answers, "/pods": refused}), dump_json({**answers, "/version": refused})]


# -- Small answers -----------------------------------------------------------------------------------------------------


def _check_small(data: bytes) -> None:
    """What listens on a port, and what holds a name."""
    _is_reported([proxy_ports.read_answer(data, Place("port", "http://127.0.0.1:10249/proxyMode"))])
    for pid in (0, 7):
        assert instance._describe(data, pid)


def _small() -> list[bytes]:
    return [b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nipvs", b'{"pid": 7, "host": "a", "node": "b", "pod": ""}']


_SHELL_TOKENS: Final = (
    b"$", b"${", b"}", b"$(", b")", b"`", b"'", b'"', b"\\", b"\n", b";", b"&", b"|", b">", b"<<EOF\n", b"#", b"A=$A$A\n", b"B=$A$A\n",
    b"kube-proxy ", b"sh -c ", b"bash -c '", b"exec ", b"env ", b"docker run ", b"sudo ", b"--proxy-mode=", b"--config=/x ",
    b"[Service]\n", b"ExecStart=", b"Environment=", b"EnvironmentFile=-/x\n", b"%N", b"%%", b"k3s server ", b"\r", b"\0", b"$A",
    b"--feature-gates=", b"ipvs", b"\xff",
)  # fmt: skip
_DOUBLING: Final = b"a0=xx\n" + b"".join(b"a%d=$a%d$a%d\n" % (n + 1, n, n) for n in range(40)) + b"kube-proxy $a40\n"
"""A million million characters in 500 bytes."""
_ENV: Final = json.dumps(
    [{"name": "a0", "value": "xx"}] + [{"name": f"a{n + 1}", "value": f"$(a{n})$(a{n})"} for n in range(40)]
).encode()

TARGETS: Final = (
    Target("file", _files, _check_file, (*YAML_TOKENS, *_SHELL_TOKENS, BOMB), (YAML,), 300),
    Target("yaml", _files, _check_yaml, (*YAML_TOKENS, BOMB), (YAML,), 200),
    Target("script", _scripts, _check_script, (*_SHELL_TOKENS, _DOUBLING), (), 120),
    Target("objects", _objects, _check_objects, JSON_TOKENS, (JSON, JSON, JSON), 800),
    Target("cluster", _answers, _check_cluster, JSON_TOKENS, (JSON, JSON, JSON), 150),
    Target("small-answers", _small, _check_small, (*JSON_TOKENS, b"HTTP/1.1 ", b"\r\n", b"Infinity", b"NaN"), (), 1500),
)
