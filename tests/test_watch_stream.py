"""proxy.watch_stream against recorded exchanges with a real API server, and against what no API server says."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.events import Delete, Event, Put
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR, BadObject, KubeObject, Node, Service
from proxy.trouble import BROKEN, NO_STREAMING, NONSENSE, Trouble
from proxy.watch_stream import Lines, Listed, Stream, read_list
from tests.recordings import Exchange

WATCHES = {"08": SERVICE, "09": ENDPOINT_SLICE, "10": ENDPOINT_SLICE, "12": SERVICE, "22": NODE}
STREAMED = Exchange("11").body


# -- Lists -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "number", "names", "version"),
    [
        (SERVICE, "02", ["kubernetes", "web1", "web2", "web3"], "218"),
        (ENDPOINT_SLICE, "03", ["kubernetes", "web1-a", "web2-a", "web3-a"], "219"),
        (SERVICE_CIDR, "06", ["kubernetes"], "20"),
        (NODE, "07", ["node0"], "210"),
    ],
)
def test_recorded_lists(kind: str, number: str, names: list[str], version: str) -> None:
    listed = read_list(kind, Exchange(number).body)
    assert [obj.metadata.name for obj in listed.objects] == names
    assert listed.version == version
    assert listed.bad == []


def test_a_recorded_object_has_its_fields() -> None:
    (node,) = read_list(NODE, Exchange("07").body).objects
    assert isinstance(node, Node)
    assert node.spec
    assert node.spec.pod_cidrs == ["10.244.0.0/24", "fd44::/64"]


def test_one_bad_item_leaves_the_others() -> None:
    answer = json.loads(Exchange("02").body)
    answer["items"][1]["spec"]["ports"][0]["port"] = "eighty"
    listed = read_list(SERVICE, json.dumps(answer).encode())
    assert [obj.metadata.name for obj in listed.objects] == ["kubernetes", "web2", "web3"]
    assert [(bad.namespace, bad.name) for bad in listed.bad] == [("default", "web1")]
    assert "$.spec.ports[0].port" in listed.bad[0].reason


def test_a_list_without_items_is_empty() -> None:
    assert read_list(SERVICE, b'{"metadata":{"resourceVersion":"7"},"items":null}') == ([], [], "7")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"items":[]}', b'{"items":{},"metadata":{}}', b"\xff\xfe"])
def test_what_is_no_list_is_nonsense(body: bytes) -> None:
    with pytest.raises(Trouble) as caught:
        read_list(SERVICE, body)
    assert caught.value.status == NONSENSE


def test_a_page_is_not_taken_for_the_list() -> None:
    with pytest.raises(Trouble, match="only a part") as caught:
        read_list(SERVICE, Exchange("04").body)
    assert caught.value.status == NONSENSE


# -- Watches -----------------------------------------------------------------------------------------------------------

Found = Event | BadObject | Listed


def read_stream(stream: Stream, pieces: list[bytes]) -> tuple[list[Found], str, int | None]:
    """Everything found, the last version, and the trouble's status."""
    found: list[Found] = []
    for piece in pieces:
        batch = stream.feed(piece)
        found += batch.found
        if batch.trouble:
            return found, stream.version, batch.trouble.status
    try:
        stream.end()
    except Trouble as trouble:
        return found, stream.version, trouble.status
    return found, stream.version, None


def shape(item: Found) -> tuple[str, Any]:
    if isinstance(item, Put):
        return "put", item.obj.metadata.name
    if isinstance(item, Listed):
        return "listed", [obj.metadata.name for obj in item.objects]
    assert isinstance(item, Delete | BadObject)
    return type(item).__name__.lower(), item.name


@pytest.mark.parametrize("number", WATCHES)
def test_recorded_watches(number: str) -> None:
    body = Exchange(number).body
    lines = [json.loads(line) for line in body.splitlines()]
    assert lines
    found, version, trouble = read_stream(Stream(WATCHES[number], "1"), [body])
    expected = [
        ("delete" if line["type"] == "DELETED" else "put", line["object"]["metadata"]["name"])
        for line in lines
        if line["type"] != "BOOKMARK"
    ]
    assert [shape(item) for item in found] == expected
    assert version == lines[-1]["object"]["metadata"]["resourceVersion"]
    assert trouble is None


def test_a_service_of_the_stream_is_complete() -> None:
    put = Stream(SERVICE, "1").feed(Exchange("08").body).found[0]
    assert isinstance(put, Put)
    assert isinstance(put.obj, Service)
    assert put.obj.spec.cluster_ip == "10.96.20.4"
    assert put.obj.metadata.resource_version == "221"


def test_an_object_that_leaves_the_selector_is_deleted() -> None:
    found, version, _ = read_stream(Stream(ENDPOINT_SLICE, "1"), [Exchange("10").body])
    assert found == [Delete(ENDPOINT_SLICE, "default", "web2-a")]
    assert version == "229"


BOOKMARK = next(line + b"\n" for line in Exchange("08").body.splitlines() if b"BOOKMARK" in line)  # 223


def test_a_bookmark_moves_the_version_only() -> None:
    stream = Stream(SERVICE, "219")
    assert stream.feed(BOOKMARK) == ([], None)
    assert (stream.version, stream.heard) == ("223", True)


@pytest.mark.parametrize(("number", "status"), [("13", 410), ("11b", 500)])
def test_recorded_errors_in_a_stream(number: str, status: int) -> None:
    stream = Stream(SERVICE, "236")
    found, trouble = stream.feed(Exchange(number).body)
    assert found == []
    assert trouble
    assert trouble.status == status
    assert (stream.version, stream.heard) == ("236", False)


def test_what_came_before_an_error_counts() -> None:
    found, version, trouble = read_stream(Stream(SERVICE, "1"), [Exchange("08").body + Exchange("13").body])
    assert [shape(item)[0] for item in found] == ["put", "put", "delete"]
    assert (version, trouble) == ("223", 410)


def test_an_answer_that_ends_within_a_line_is_broken() -> None:
    assert read_stream(Stream(SERVICE, "1"), [Exchange("08").body[:-20]])[2] == BROKEN


@pytest.mark.parametrize(
    "line",
    [b"<html>", b"{}", b'{"type":"ADDED"}', b'{"type":"RENAMED","object":{}}', b'{"type":"ERROR","object":7}', b"\xff"],
)
@pytest.mark.parametrize("initial", [False, True])
def test_what_is_no_event_is_nonsense(line: bytes, initial: bool) -> None:
    assert read_stream(Stream(SERVICE, "1", initial=initial), [line + b"\n"])[2] == NONSENSE


@given(st.binary(max_size=80), st.booleans())
def test_no_bytes_make_it_fall(noise: bytes, initial: bool) -> None:
    assert Stream(SERVICE, "1", initial=initial).feed(noise + b"\n").found == []


def line_of(kind: str, name: str = "a", version: str = "", *, event: str = "ADDED", **fields: Any) -> bytes:
    meta = {"name": name, "namespace": "ns", "resourceVersion": version}
    return json.dumps({"type": event, "object": {"metadata": meta, "spec": {}} | fields}).encode() + b"\n"


@pytest.mark.parametrize("event", ["ADDED", "MODIFIED"])
def test_an_object_that_cannot_be_read_is_named(event: str) -> None:
    (found,), trouble = Stream(SERVICE, "1").feed(line_of(SERVICE, "a", "2", event=event, spec={"ports": "none"}))
    assert isinstance(found, BadObject)
    assert (found.namespace, found.name) == ("ns", "a")
    assert "$.spec.ports" in found.reason
    assert trouble is None


def test_an_object_without_a_name_is_a_bad_one() -> None:
    ((found,), _) = Stream(SERVICE, "1").feed(b'{"type":"ADDED","object":{"metadata":{"namespace":"x"},"spec":{}}}\n')
    assert isinstance(found, BadObject)
    assert "metadata.name is missing" in found.reason


def test_the_deletion_of_what_cannot_be_read() -> None:
    line = line_of(SERVICE, "a", "2", event="DELETED", spec={"ports": "none"})
    assert Stream(SERVICE, "1").feed(line) == ([Delete(SERVICE, "ns", "a")], None)


def test_a_bookmark_that_cannot_be_read_is_one_all_the_same() -> None:
    stream = Stream(SERVICE, "1")
    assert stream.feed(line_of(SERVICE, "", "9", event="BOOKMARK", spec=7)) == ([], None)
    assert stream.version == "9"


# -- Order -------------------------------------------------------------------------------------------------------------


def versions(stream: Stream, *numbers: str) -> list[str]:
    """Which of these come through."""
    found = [item for number in numbers for item in stream.feed(line_of(SERVICE, "a", number)).found]
    return [item.obj.metadata.resource_version for item in found if isinstance(item, Put)]


def test_what_is_older_than_what_is_known_is_passed_over() -> None:
    stream = Stream(SERVICE, "100")
    assert versions(stream, "101", "99", "103", "102", "104") == ["101", "103", "104"]
    assert stream.version == "104"


def test_a_late_deletion_is_passed_over() -> None:
    stream = Stream(SERVICE, "100")
    stream.feed(line_of(SERVICE, "a", "105"))
    assert stream.feed(line_of(SERVICE, "a", "103", event="DELETED")) == ([], None)
    assert stream.feed(line_of(SERVICE, "a", "106", event="DELETED")) == ([Delete(SERVICE, "ns", "a")], None)


def test_versions_are_numbers_and_not_text() -> None:
    assert versions(Stream(SERVICE, "99"), "100", "1000", "999") == ["100", "1000"]


def test_the_same_version_again_does_no_harm() -> None:
    assert versions(Stream(SERVICE, "100"), "101", "101") == ["101", "101"]  # the state makes nothing of it


@pytest.mark.parametrize("known", ["", "abc", "9" * 30])
def test_what_cannot_be_compared_counts(known: str) -> None:
    assert versions(Stream(SERVICE, known), "5", "x", "3") == ["5", "x", "3"]


def test_a_bookmark_from_before_is_no_sign_of_life() -> None:
    stream = Stream(SERVICE, "500")
    assert stream.feed(BOOKMARK) == ([], None)
    assert (stream.version, stream.heard) == ("500", False)


# -- Streaming lists ---------------------------------------------------------------------------------------------------


def test_a_recorded_streaming_list_and_the_watch_that_it_becomes() -> None:
    stream = Stream(SERVICE, "", initial=True)
    found, version, trouble = read_stream(stream, [STREAMED])
    assert [shape(item) for item in found] == [
        ("listed", ["kubernetes", "web1", "web2", "web3"]),
        ("put", "web4"),
        ("put", "web4"),
        ("delete", "web4"),
    ]
    assert isinstance(found[0], Listed)
    assert (found[0].version, version, trouble) == ("231", "235", None)
    assert not stream.is_initial


def test_nothing_is_found_before_the_end_mark() -> None:
    *before, end = STREAMED.splitlines(keepends=True)[:5]
    stream = Stream(SERVICE, "", initial=True)
    for line in before:
        assert stream.feed(line) == ([], None)
        assert stream.is_initial
        assert stream.version == ""
    assert len(stream.feed(end).found) == 1
    assert (stream.is_initial, stream.version) == (False, "231")
    assert not stream.heard  # the list alone is no sign that the watch works


def end_mark(version: str) -> bytes:
    meta = {"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}}
    return json.dumps({"type": "BOOKMARK", "object": {"metadata": meta, "spec": {}}}).encode() + b"\n"


def test_changes_among_the_initial_events() -> None:
    lines = [
        line_of(SERVICE, "a", "5"),
        line_of(SERVICE, "b", "90"),
        line_of(SERVICE, "c", "3"),  # by name, not by version
        line_of(SERVICE, "b", "91", event="DELETED"),
        line_of(SERVICE, "a", "92", event="MODIFIED", spec={"type": "NodePort"}),
        line_of(SERVICE, "d", "93", spec={"ports": 7}),
        end_mark("95"),
    ]
    (found,), _ = Stream(SERVICE, "", initial=True).feed(b"".join(lines))
    assert isinstance(found, Listed)
    assert [obj.metadata.name for obj in found.objects] == ["a", "c"]
    assert isinstance(found.objects[0], Service)
    assert found.objects[0].spec.type == "NodePort"
    assert [bad.name for bad in found.bad] == ["d"]
    assert found.version == "95"


def test_after_the_end_mark_order_counts() -> None:
    stream = Stream(SERVICE, "", initial=True)
    stream.feed(line_of(SERVICE, "a", "5") + end_mark("95"))
    assert versions(stream, "94", "96") == ["96"]


def test_nothing_at_all_is_a_list_too() -> None:
    assert Stream(SERVICE, "", initial=True).feed(end_mark("7")).found == [Listed([], [], "7")]


@pytest.mark.parametrize("lines", [0, 1, 4])
def test_an_end_before_the_end_mark_is_broken(lines: int) -> None:
    stream = Stream(SERVICE, "", initial=True)
    found, _, trouble = read_stream(stream, STREAMED.splitlines(keepends=True)[:lines])
    assert (found, trouble) == ([], BROKEN)


def test_a_recorded_server_that_cannot_stream_lists() -> None:
    found, _, trouble = read_stream(Stream(SERVICE, "", initial=True), [Exchange("11b").body])
    assert (found, trouble) == ([], NO_STREAMING)


def test_a_server_that_has_never_heard_of_streaming_lists() -> None:
    """It sends the objects, and when nothing happens a bookmark like any other."""
    *objects, _ = STREAMED.splitlines(keepends=True)[:5]
    found, _, trouble = read_stream(Stream(SERVICE, "", initial=True), [*objects, BOOKMARK])
    assert (found, trouble) == ([], NO_STREAMING)


@pytest.mark.parametrize(("code", "status"), [(410, 410), (429, 429), (504, 504), (500, NO_STREAMING)])
def test_other_errors_instead_of_a_list(code: int, status: int) -> None:
    error = {"kind": "Status", "metadata": {}, "message": "m", "code": code}
    line = json.dumps({"type": "ERROR", "object": error}).encode() + b"\n"
    assert read_stream(Stream(SERVICE, "", initial=True), [line])[2] == status


# -- Pieces ------------------------------------------------------------------------------------------------------------


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


_CUT = {
    **{number: (kind, False, Exchange(number).body) for number, kind in WATCHES.items()},
    "11": (SERVICE, True, STREAMED),
    "11b": (SERVICE, True, Exchange("11b").body),
    "13": (SERVICE, False, Exchange("13").body),
}


@given(st.data())
def test_it_does_not_matter_where_a_recorded_stream_is_cut(data: st.DataObject) -> None:
    kind, initial, body = _CUT[data.draw(st.sampled_from(sorted(_CUT)))]
    places = data.draw(st.lists(st.integers(0, len(body)), max_size=40))
    whole = read_stream(Stream(kind, "1", initial=initial), [body])
    assert read_stream(Stream(kind, "1", initial=initial), cut(body, places)) == whole


@pytest.mark.parametrize("number", ["09", "11"])
def test_byte_by_byte(number: str) -> None:
    kind, initial, body = _CUT[number]
    pieces = [body[i : i + 1] for i in range(len(body))]
    whole = read_stream(Stream(kind, "1", initial=initial), [body])
    assert read_stream(Stream(kind, "1", initial=initial), pieces) == whole


@given(st.lists(st.binary(max_size=6).map(lambda b: b.replace(b"z", b"\n"))))
def test_lines_are_those_of_the_whole(pieces: list[bytes]) -> None:
    lines = Lines()
    *whole, rest = b"".join(pieces).split(b"\n")
    assert [line for piece in pieces for line in lines.feed(piece)] == whole
    assert lines.unfinished == bool(rest)


@pytest.mark.parametrize("pieces", [[b"12345678901\n"], [b"123456", b"78901"], [b"ok\n1234567890", b"1"]])
def test_a_line_over_the_limit_is_nonsense(pieces: list[bytes]) -> None:
    lines = Lines(limit=10)
    with pytest.raises(Trouble) as caught:
        for piece in pieces:
            lines.feed(piece)
    assert caught.value.status == NONSENSE


def test_a_line_of_the_limit_is_well() -> None:
    assert Lines(limit=10).feed(b"1234567890\n\n1234567890\n") == [b"1234567890", b"", b"1234567890"]


# -- What is kept ------------------------------------------------------------------------------------------------------


def test_objects_are_reduced_one_by_one_as_they_come() -> None:
    seen: list[str] = []

    def prepare(obj: KubeObject) -> KubeObject:
        seen.append(obj.metadata.name)
        return obj

    lines = STREAMED.splitlines(keepends=True)
    stream = Stream(SERVICE, "", initial=True, prepare=prepare)
    stream.feed(lines[0])
    assert seen == ["kubernetes"]
    for line in lines[1:]:
        stream.feed(line)
    assert seen == ["kubernetes", "web1", "web2", "web3", "web4", "web4"]
    read_list(SERVICE, Exchange("02").body, prepare)
    assert seen[6:] == ["kubernetes", "web1", "web2", "web3"]
