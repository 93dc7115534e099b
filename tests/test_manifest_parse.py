"""What is read from the bytes of one manifest file."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from proxy import model
from proxy.manifest_parse import Broken, parse


def service(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}}


def text(*objects: Any) -> str:
    return yaml.safe_dump_all(objects)


def parsed_names(name: str, content: str | bytes) -> list[str]:
    parsed = parse(name, content.encode() if isinstance(content, str) else content)
    assert not parsed.bad
    return [key[2] for key in parsed.objects]


@pytest.mark.parametrize(
    ("document", "names"),
    [
        (service("a"), ["a"]),
        ({"apiVersion": "v1", "kind": "List", "items": [service("a"), service("b")]}, ["a", "b"]),
        ({"apiVersion": "v1", "kind": "ServiceList", "items": [service("a"), service("b")]}, ["a", "b"]),
        ({"apiVersion": "v1", "kind": "ServiceList", "items": [{"metadata": {"name": "a"}, "spec": {}}]}, ["a"]),
        ({"apiVersion": "v1", "kind": "List", "items": None}, []),
        (
            {
                "apiVersion": "v1",
                "kind": "List",
                "items": [{"apiVersion": "v1", "kind": "List", "items": [service("a")]}, service("b")],
            },
            ["a", "b"],
        ),
        (
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSliceList",
                "items": [{"metadata": {"name": "s"}, "addressType": "IPv4"}],
            },
            ["s"],
        ),
    ],
)
def test_single_objects_and_lists_in_yaml_and_json(document: Any, names: list[str]) -> None:
    assert parsed_names("x.yaml", yaml.safe_dump(document)) == names
    assert parsed_names("x.yaml", json.dumps(document)) == names
    assert parsed_names("x.json", json.dumps(document)) == names
    assert parsed_names("x.json", b"\xef\xbb\xbf" + json.dumps(document).encode()) == names


def test_many_documents_some_of_them_empty() -> None:
    assert parsed_names("x.yaml", f"---\n# nothing\n---\n{text(service('a'), service('b'))}---\n") == ["a", "b"]


def test_all_four_kinds_and_default_namespace() -> None:
    documents = [
        service("s"),
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "e", "namespace": "n"}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "o"}},
        {"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "c"}},
    ]
    assert list(parse("x.yml", text(*documents).encode()).objects) == [
        ("Service", "default", "s"),
        ("EndpointSlice", "n", "e"),
        ("Node", "", "o"),
        ("ServiceCIDR", "", "c"),
    ]


def test_other_kinds_and_foreign_versions_are_ignored() -> None:
    content = text(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}},
        {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "k"}, "spec": {"x": []}},
        {"apiVersion": "v1", "kind": "PodList", "items": [{}]},
        service("a"),
    )
    parsed = parse("x.yaml", content.encode())
    assert [key[2] for key in parsed.objects] == ["a"]
    assert not parsed.bad
    assert parsed.ignored == {"apps/v1 Deployment", "serving.knative.dev/v1 Service", "v1 PodList"}


def test_yaml_scalars_are_what_kubectl_makes_of_them() -> None:
    content = """
apiVersion: v1
kind: Service
metadata:
  name: web
  creationTimestamp: 2026-01-01T00:00:00Z
  labels: {date: 2026-01-01, sign: =, text: "1.10"}
spec: {clusterIP: 1:2:3:4:5:6:7:8, ports: [{port: 80}]}
"""
    (obj,) = parse("x.yaml", content.encode()).objects.values()
    assert isinstance(obj, model.Service)
    assert obj.metadata.creation_timestamp == "2026-01-01T00:00:00Z"
    assert obj.metadata.labels == {"date": "2026-01-01", "sign": "=", "text": "1.10"}
    assert obj.spec.cluster_ip == "1:2:3:4:5:6:7:8"


@pytest.mark.parametrize("value", ["1.10", "on", "yes", "010", "~"])
def test_a_label_that_is_no_string_spoils_its_object_only(value: str) -> None:
    content = text(service("a")) + f"---\n{text(service('b'))}".replace("name: b", f"name: b\n  labels: {{v: {value}}}")
    parsed = parse("x.yaml", content.encode())
    assert [key[2] for key in parsed.objects] == ["a"]
    ((key, what, reason),) = [(bad.key, bad.what, bad.reason) for bad in parsed.bad]
    assert (key, what) == (("Service", "default", "b"), "Service default/b")
    assert "labels" in reason


def test_merge_keys_and_aliases_work() -> None:
    content = """
apiVersion: v1
kind: List
items:
- &base {apiVersion: v1, kind: Service, metadata: {name: a}, spec: &spec {ports: [{port: 80}]}}
- {<<: *base, metadata: {name: b}}
- {apiVersion: v1, kind: Service, metadata: {name: c}, spec: *spec}
"""
    parsed = parse("x.yaml", content.encode())
    assert [key[2] for key in parsed.objects] == ["a", "b", "c"]
    assert all(isinstance(obj, model.Service) and obj.spec.ports for obj in parsed.objects.values())


def bomb(item: str) -> str:
    """Thirty levels, each twice the one before."""
    levels = [f"  l0: &l0 {item}"] + [f"  l{n}: &l{n} [*l{n - 1}, *l{n - 1}]" for n in range(1, 30)]
    return "x:\n" + "\n".join(levels) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("x.yaml", "a: 1\nb: c: d\n", "line 2, column 5: mapping values are not allowed"),
        ("x.yaml", "a: [1\n", "line 2, column 1: did not find expected"),
        ("x.yaml", b"a: 1\nb: '\xff'\n", "line 2, column 5: invalid leading UTF-8 octet"),
        ("x.yaml", b"a: \x00\x01", "line 1, column 4: control characters are not allowed"),
        ("x.yaml", "a: !!python/object:os.system {}\n", "line 1, column 4: could not determine a constructor"),
        ("x.yaml", "a: !!int ten\n", "a value does not fit its type: ValueError"),
        ("x.yaml", "a: !!timestamp ten\n", "a value does not fit its type: AttributeError"),
        ("x.yaml", f"a: {'1' * 5000}\n", "a value does not fit its type: ValueError"),
        ("x.yaml", "a: *missing\n", "line 1, column 4: found undefined alias"),
        ("x.yaml", "a: &a [*a]\n", "line 1: an alias stands inside what it stands for"),
        ("x.yaml", bomb("[1, 2]"), "its aliases stand for more than"),
        ("x.yaml", bomb("{a: b}").replace("[", "{<<: [").replace("]", "]}"), "its aliases stand for more than"),
        ("x.yaml", "[" * 100_000, "exceeded maximum nesting depth"),
        ("x.yaml", "- " * 100_000, "exceeded maximum nesting depth"),
        ("x.yaml", "{a: " * 100_000, "exceeded maximum nesting depth"),
        ("x.json", '{"a":\n  x}', "line 2, column 3: JSON is malformed: invalid character"),
        ("x.json", '{"a": 1}\n{"a": 2}', "line 2, column 2: JSON is malformed: trailing characters"),
        ("x.json", '{\n"a":', "line 2, column 5: Input data was truncated"),
        ("x.json", b'{"a":\n "\xff"}', "line 2, column 3: not UTF-8"),
        ("x.json", "[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_files_say_where_and_why(name: str, content: str | bytes, cause: str) -> None:
    with pytest.raises(Broken) as caught:
        parse(name, content.encode() if isinstance(content, str) else content)
    assert cause in caught.value.cause
    assert caught.value.remedy


@given(
    st.one_of(st.binary(), st.text(alphabet="{}[]:,-&*!<'\"| \nab1").map(str.encode)), st.sampled_from(["yaml", "json"])
)
def test_no_content_raises_anything_but_broken(content: bytes, suffix: str) -> None:
    try:
        parse(f"x.{suffix}", content)
    except Broken:
        pass


def nested_list(depth: int) -> str:
    """JSON may be nested deeper than the walk through it can go."""
    return '{"apiVersion":"v1","kind":"List","items":[' * depth + "]}" * depth


@pytest.mark.parametrize("depth", [10, 200, 450, 2000])
def test_lists_nested_at_any_depth_end_well(depth: int) -> None:
    content = nested_list(depth).encode()
    cause = "nested too deeply"
    try:
        parse("x.json", content)
    except Broken as e:
        cause = e.cause if depth > 10 else "too early"  # where the limit lies beyond that is Python's business
    assert cause == "nested too deeply"


@pytest.mark.parametrize("content", ["hello", "- 1", "kind: Service", "apiVersion: v1", "{kind: 1, apiVersion: v1}"])
def test_what_is_no_object_at_all(content: str) -> None:
    (bad,) = parse("x.yaml", content.encode()).bad
    assert bad.key is None
    assert bad.what == "document 1"


@pytest.mark.parametrize("content", ["", "\n", "# nothing\n", "---\n---\n"])
def test_empty(content: str) -> None:
    assert parse("x.yaml", content.encode()).empty
