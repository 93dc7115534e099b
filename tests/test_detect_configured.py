"""Real-shaped configurations of kube-proxy and what the detector makes of them.

The corpus is in tests/data/detect: directories of files, with a table of what each says in expected.yaml. An entry of
`evidence` is a mode ("unset" for none), an option, a gate, a version, "off" or "unreadable"; then how sure it is and whether it
is overridden, its line, its node, and a part of its note. `findings` has their severities with Kubernetes 1.34, 1.37 and 1.40:
(n)otice, (d)eprecated, (B)roken, - for none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.detect import yaml_lines
from proxy.detect.evidence import (
    ConfiguredMode,
    Evidence,
    FeatureGate,
    IpvsOption,
    Kernel,
    Unreadable,
    Version,
)
from proxy.detect.files import read_file
from proxy.detect.judge import judge
from proxy.detect.report import as_json, as_text

DATA: Final = Path(__file__).parent / "data" / "detect"
VERSIONS: Final = ("1.34", "1.37", "1.40")
LETTERS: Final = {"notice": "n", "deprecated": "d", "broken": "B"}
WORST: Final = "-ndB"

Case = tuple[str, dict[str, Any]]


def corpus() -> list[Case]:
    return [
        (f"{table.parent.name}/{name}", case)
        for table in sorted(DATA.glob("*/expected.yaml"))
        for name, case in yaml.safe_load(table.read_text()).items()
    ]


def read(name: str, case: dict[str, Any], data: bytes | None = None) -> list[Evidence]:
    data = (DATA / name).read_bytes() if data is None else data
    return read_file(case.get("as", name), data, expected=case.get("expected", False))


def shown(item: Evidence) -> tuple[str, str]:
    """As an entry of the table has it, and the text of which that has a part."""
    note = ""
    match item:
        case ConfiguredMode():
            text, note = item.mode or "unset", item.note
        case IpvsOption():
            text = f"{item.name}={item.value}"
        case FeatureGate():
            text = f"gate={str(item.value).lower()}"
        case Version():
            text = f"{item.of} {item.version}"
        case Kernel():
            text = f"Linux {item.release}"
        case Unreadable():
            text, note = "off" if item.harmless else "unreadable", item.cause
        case _:
            raise AssertionError(item)
    text += f" {item.sure}" if item.sure != "certain" else ""
    text += " overridden" if isinstance(item, ConfiguredMode) and item.overridden else ""
    text += f" @{item.place.line}"
    return text + (f" node={item.place.node}" if item.place.node else ""), note


def matches(item: Evidence, entry: str) -> bool:
    wanted, _, note = entry.partition(": ")
    text, found = shown(item)
    if not re.search(r" @\d+", wanted):
        text = re.sub(r" @\d+", "", text)
    return text == wanted and note in found


def severities(evidence: list[Evidence]) -> dict[str, str]:
    rows: dict[str, list[str]] = {}
    for number, version in enumerate(VERSIONS):
        for finding in judge(evidence, version).findings:
            row = rows.setdefault(finding.check, ["-"] * len(VERSIONS))
            row[number] = max(row[number], LETTERS[finding.severity], key=WORST.index)
    return {check: " ".join(row) for check, row in rows.items()}


@pytest.fixture(params=["libyaml", "PyYAML"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both parsers: where there is no libyaml, PyYAML's own is used."""
    if request.param == "PyYAML":
        monkeypatch.setattr(yaml_lines, "_LOADER", yaml.SafeLoader)
    elif not yaml.__with_libyaml__:
        pytest.skip("PyYAML was built without libyaml")
    return str(request.param)


@pytest.mark.parametrize(("name", "case"), corpus(), ids=[name for name, _ in corpus()])
def test_the_corpus(name: str, case: dict[str, Any], parser: str) -> None:
    evidence = read(name, case)
    left = [str(entry) for entry in case["evidence"]]
    for item in evidence:
        fitting = [entry for entry in left if matches(item, entry)]
        assert fitting, (shown(item), left)
        left.remove(fitting[0])
    assert not left, [shown(item) for item in evidence]
    assert severities(evidence) == case["findings"]


def test_the_tables_name_every_file() -> None:
    named = {name for name, _ in corpus()}
    assert named == {
        str(file.relative_to(DATA)) for file in DATA.glob("*/*") if file.name not in ("expected.yaml", ".gitattributes")
    }
    assert len(named) >= 60


CUT: Final = [(name, case) for name, case in corpus() if (DATA / name).stat().st_size]


@settings(max_examples=400, deadline=None)
@given(case=st.sampled_from(CUT), data=st.data())
def test_a_file_that_breaks_off_anywhere(case: Case, data: st.DataObject) -> None:
    """Nothing is raised, and no mode is invented: what counts for sure is written where it is said to be."""
    name, entry = case
    content = (DATA / name).read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    evidence = read(name, entry, content[:cut])
    lines = _lines(content[:cut])
    for item in evidence:
        if isinstance(item, ConfiguredMode) and item.mode and item.sure == "certain":
            # A flag's value may be on the line below it, or in a variable. k3s gives "true" to a flag without a value.
            text = "\n".join(lines[item.place.line - 1 : item.place.line + 1])
            mode = item.mode.upper() if name.startswith("tools/aks") else item.mode
            assert "$" in text or mode in ("true", "false") or all(word in text for word in mode.split()), item
    judge(evidence, "1.37")


def _lines(content: bytes) -> list[str]:
    encoding = "utf-16" if content.startswith(b"\xff\xfe") else "utf-8"
    return content.decode(encoding, errors="replace").splitlines() or [""]


@settings(max_examples=300, deadline=None)
@given(case=st.sampled_from(CUT), data=st.data())
def test_a_damaged_file(case: Case, data: st.DataObject) -> None:
    name, entry = case
    content = bytearray((DATA / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        content = content or bytearray(b" ")
    judge(read(name, entry, bytes(content)), "1.40")


PATHS: Final = (
    "config.conf",
    "/etc/rancher/k3s/config.yaml",
    "/etc/systemd/system/kube-proxy.service",
    "/etc/default/kube-proxy",
    "start.sh",
)
STARTS: Final = (
    b"",
    b"[Service]\nExecStart=kube-proxy ",
    b"#!/bin/sh\nkube-proxy ",
    b"A_PROXY=",
    b"--proxy-mode=",
    b"{",
    b"\xff\xfe",
)


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(PATHS), start=st.sampled_from(STARTS), data=st.binary(max_size=200), expected=st.booleans())
def test_any_bytes(path: str, start: bytes, data: bytes, expected: bool) -> None:
    evidence = read_file(path, start + data, expected=expected)
    assert evidence or not expected
    as_text(judge(evidence))


WORDS: Final = (
    "kube-proxy", "--proxy-mode=ipvs", "'x'", '"y"', "'", '"', "$A", "${B}", "${C:-ipvs}", "$(d)", "`e`", "$(", "${", "\\",
    "\n", ";", "&", "|", ">", "2>&1", "<<", "EOF", "#", "exec", "sh", "-c", "A=b", "--config=", "--proxy-mode", "%", "=",
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(PATHS), start=st.sampled_from(STARTS), words=st.lists(st.sampled_from(WORDS), max_size=12))
def test_any_command(path: str, start: bytes, words: list[str]) -> None:
    read_file(path, start + " ".join(words).encode(), expected=True)


SECRETS: Final = ("c0ffee", "hunter2", "abcdef.0123456789abcdef")


@pytest.mark.parametrize(("name", "case"), corpus(), ids=[name for name, _ in corpus()])
def test_no_secret_leaves_a_file(name: str, case: dict[str, Any]) -> None:
    content = (DATA / name).read_bytes()
    found = [secret.encode() for secret in SECRETS if secret.encode() in content]
    for cut in {len(content), *(content.find(secret) + 3 for secret in found)}:
        report = judge(read(name, case, content[:cut]))
        for secret in SECRETS:
            assert secret not in as_json(report) + as_text(report)


def test_a_deep_file() -> None:
    text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\nx: " + "[" * 100_000
    found = read_file("config.conf", text.encode())
    assert [item.mode for item in found if isinstance(item, ConfiguredMode)] == ["ipvs"]
    assert [bool(re.search("nest", item.cause)) for item in found if isinstance(item, Unreadable)] == [True]


def test_a_huge_file(parser: str) -> None:
    """All ConfigMaps of a cluster, of which one is kube-proxy's."""
    other = (
        "- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: c, namespace: n}\n  data:\n    k: |\n"
        + "      text\n" * 30
    )
    ours = (DATA / "kubeadm/configmap-ipvs.yaml").read_text().rstrip().replace("\n", "\n  ")
    count = 20_000 if parser == "libyaml" else 1_000
    text = f"apiVersion: v1\nkind: List\nitems:\n{other * count}- {ours}\n"
    found = read_file("all.yaml", text.encode())
    line = 3 + 35 * count + 44
    assert [(item.mode, item.place.line) for item in found if isinstance(item, ConfiguredMode)] == [("ipvs", line)]


def test_what_is_not_about_kube_proxy_is_not_read() -> None:
    assert read_file("nginx.conf", b"worker_processes 4;\nhttp { ") == []
    assert read_file("/etc/kubernetes/manifests/etcd.yaml", b"kind: Pod\n\tx") == []
    assert read_file("template.yaml", b"{{ if .Values.proxy }}\nkind: x\n{{ end }}\n") == []


def test_the_nodes_name_is_in_all_evidence() -> None:
    for name, case in corpus():
        if name == "k3s/nodes.json":
            continue
        for item in read_file(case.get("as", name), (DATA / name).read_bytes(), node="n1", expected=True):
            assert item.place.node == "n1", (name, item)
