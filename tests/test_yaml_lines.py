"""YAML with lines, as far as it can be read."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.detect.yaml_lines import Value, read_yaml


def plain(value: Value) -> Any:
    if isinstance(value.data, dict):
        return {key: plain(v) for key, v in value.data.items()}
    if isinstance(value.data, list):
        return [plain(v) for v in value.data]
    return value.data


def test_values_and_lines() -> None:
    documents, faults = read_yaml("a: 1\nb:\n  c: [x, true, null, ~]\n  d: 'yes'\n---\n---\ne: |\n  long\n  text\n")
    assert not faults
    assert [plain(d) for d in documents] == [
        {"a": "1", "b": {"c": ["x", True, None, None], "d": "yes"}},
        {"e": "long\ntext\n"},
    ]
    first = documents[0]
    assert [first.get("a").line, first.get("b", "c").line, first.get("b", "d").line] == [1, 3, 4]  # type: ignore[union-attr]
    assert (
        first.text("a") == "1"
        and first.text("b") == ""
        and first.text("b", "d") == "yes"
        and first.text("no", "way") == ""
    )
    assert [v.data for v in first.items("b", "c")] == ["x", True, None, None]


def test_json_with_tabs() -> None:
    documents, faults = read_yaml('{\n\t"mode": "ipvs",\n\t"ipvs": {"strictARP": true}\n}')
    assert not faults and documents[0].get("mode").line == 2 and documents[0].text("ipvs", "strictARP") == "true"  # type: ignore[union-attr]


def test_what_comes_before_a_fault_is_kept() -> None:
    documents, faults = read_yaml("mode: ipvs\nipvs:\n  scheduler: rr\n  x: [1, 2\nfeatureGates: {}\nz: 1\n")
    assert documents[0].text("mode") == "ipvs" and documents[0].text("ipvs", "scheduler") == "rr"
    assert len(faults) == 1 and faults[0].line >= 4


def test_a_line_counts_from_the_place_in_a_larger_file() -> None:
    documents, faults = read_yaml("a: 1\nb: :\n  : [", first_line=11)
    assert documents[0].get("a").line == 11 and faults[0].line >= 12  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n---\n", "~"])
def test_nothing(text: str) -> None:
    assert read_yaml(text) == ([], [])


def test_anchors_and_merge_keys() -> None:
    documents, faults = read_yaml("base: &b {mode: ipvs, x: 1}\nnode:\n  <<: *b\n  x: 2\nagain: *b\n")
    assert not faults
    assert plain(documents[0]) == {
        "base": {"mode": "ipvs", "x": "1"}, "node": {"mode": "ipvs", "x": "2"}, "again": {"mode": "ipvs", "x": "1"}
    }  # fmt: skip


def test_a_key_given_twice_is_named() -> None:
    documents, faults = read_yaml("mode: ipvs\nmode: nftables\n")
    assert documents[0].text("mode") == "nftables"
    assert [(f.line, f.cause) for f in faults] == [(2, "mode is given twice; the last one counts")]


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [*x, *x]",
        "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)),
        "[" * 5000,
        "a: *unknown",
        "\x00",
        "a: \ud800",
        "? {a: b}\n: c",
        "!!python/object/apply:os.system ['true']",
        "%YAML 9.9\n---\na: 1",
        "a: !!int x\nb: !!binary ===",
        "\t\t- x",
    ],
)  # fmt: skip
def test_hostile_text(text: str) -> None:
    read_yaml(text)


@settings(max_examples=300)
@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@`?, \n\t0", max_size=60))
def test_any_text(text: str) -> None:
    documents, faults = read_yaml(text)
    try:
        loaded = [d for d in yaml.safe_load_all(text) if d is not None]
    except Exception:
        return
    if not faults:
        assert len(documents) == len(loaded)
