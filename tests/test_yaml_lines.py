"""YAML with lines, as far as it can be read."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.detect import yaml_lines
from proxy.detect.yaml_lines import Value, from_object, read_yaml

LOADERS: list[Any] = [yaml.SafeLoader, *([yaml.CSafeLoader] if yaml.__with_libyaml__ else [])]


@pytest.fixture(autouse=True, params=LOADERS)
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyYAML's parser and, where it is there, libyaml's."""
    monkeypatch.setattr(yaml_lines, "_LOADER", request.param)
    return request.param


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


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="ab:-[]{}#&*!|>'\"%@`?, \n\t0", max_size=60))
def test_any_text(loader: Any, text: str) -> None:
    documents, faults = read_yaml(text)
    try:
        loaded = [d for d in yaml.load_all(text, Loader=loader) if d is not None]
    except Exception:
        return
    if not faults:
        assert len([d for d in documents if d.data != ""]) == len([d for d in loaded if d != ""])


def test_after_a_fault_the_next_document_is_read() -> None:
    text = "a: 1\n---\nb: [\nc: 2\n---\nd: 3\n--- \n\t- e\n---\nf: 4\n"
    documents, faults = read_yaml(text)
    assert [plain(d) for d in documents if d.whole] == [{"a": "1"}, {"d": "3"}, {"f": "4"}]
    assert [fault.line for fault in faults] in ([4, 8], [5, 8]), faults
    assert [d.get("f").line for d in documents if d.get("f")] == [10]  # type: ignore[union-attr]


def test_what_is_not_whole_lacks_nothing_for_sure() -> None:
    documents, faults = read_yaml("a: {b: 1}\nc:\n  d: 1\n  e: 'x\n")
    assert faults and not documents[0].whole
    assert documents[0].lacks("a", "z") and not documents[0].lacks("c", "z") and not documents[0].lacks("y")
    assert not documents[0].lacks("a", "b")
    [whole], faults = read_yaml("a: {b: 1}\n")
    assert not faults and whole.lacks("y") and whole.lacks("a", "z") and whole.lacks("a", "b", "c")


@pytest.mark.parametrize("text", ["a: 1\nmode: ipvs: x\n", "a: 1\nmode: ipvs\n  more: x\n"])
def test_a_value_with_a_fault_right_behind_it_is_none(text: str) -> None:
    documents, faults = read_yaml(text)
    assert faults and plain(documents[0]) == {"a": "1"}


def test_literal_blocks_know_where_their_text_begins() -> None:
    text = "a: |\n  x\n  y\nb: |2-\n    z\nc: >\n  f\nd: 'g'\n"
    [document], faults = read_yaml(text)
    assert not faults
    assert {key: value.text_line for key, value in document.fields().items()} == {"a": 2, "b": 5, "c": 0, "d": 0}
    [document], _ = read_yaml("a: |\n  x\n", first_line=7, one_line=True)
    assert (document.line, document.fields()["a"].line, document.fields()["a"].text_line) == (7, 7, 0)


def test_a_mapping_is_where_its_name_is() -> None:
    [document], _ = read_yaml("a:\n\n  b:\n  - c\n")
    assert [document.get("a").line, document.get("a", "b").line] == [1, 3]  # type: ignore[union-attr]


def test_characters_that_are_no_text() -> None:
    documents, faults = read_yaml("a: 1\nb: x\x00y\nmode: ipvs\n")
    assert documents[0].text("mode") == "ipvs" and [fault.line for fault in faults] == [2]


def test_a_fault_at_the_end_is_on_the_last_line() -> None:
    _, faults = read_yaml("a: 1\nb: 'x\n\n\n")
    assert [fault.line for fault in faults] == [2]


def test_secrets_in_the_place_of_names() -> None:
    _, faults = read_yaml("hunter2: a\nhunter2: b\nc: *hunter2\n-----BEGIN KEY-----: 1\n-----BEGIN KEY-----: 2\n")
    assert len(faults) == 3 and "hunter2" not in str(faults) and "BEGIN" not in str(faults)


def test_objects() -> None:
    value = from_object({"a": [1, True, None, {"b": "c\nd"}], "e": (2.5,)})
    assert plain(value) == {"a": ["1", True, None, {"b": "c\nd"}], "e": ["2.5"]} and value.line == 0
    deep: Any = "x"
    for _ in range(10_000):
        deep = [deep]
    from_object(deep)


def test_a_bomb_is_cut_off_and_ends_the_text() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    documents, faults = read_yaml(bomb + "---\nmode: ipvs\n")
    assert len(documents) == 1 and [fault.cause for fault in faults] == ["more values than any configuration has"]
