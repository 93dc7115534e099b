"""proxy.watch: its pure half against recorded exchanges with a real API server, its loop against a scripted one."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy.events import Delete, Event, Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR, BadObject, Node, Service
from proxy.watch import (
    ABSENT_RETRY,
    BACKOFF_MAX,
    BROKEN,
    NONSENSE,
    READ_SLACK,
    SILENCE,
    UNREACHABLE,
    WATCH_SECONDS,
    Lines,
    Resource,
    Step,
    Stream,
    Trouble,
    Watcher,
    backoff,
    read_list,
    refusal,
    resources,
    what_next,
)

DATA = Path(__file__).parent / "data" / "api"


class Recording:
    """One recorded exchange. `body`: the bytes of the answer; of a watch the lines as they came, without the times."""

    def __init__(self, number: str) -> None:
        (self.file,) = DATA.glob(f"{number}-*.txt")
        head, _, body = self.file.read_text().partition("\n\n")
        asked = [line[2:] for line in head.splitlines() if line.startswith("> ")]
        answered = [line[2:] for line in head.splitlines() if line.startswith("< ")]
        self.path = asked[0].split()[1]
        self.status = int(answered[0].split()[0])
        self.headers = dict(line.split(": ", 1) for line in answered[1:])
        if body.startswith("["):
            lines = [re.sub(r"^\[[0-9.]+ s\] ", "", line) for line in body.splitlines() if line.startswith("[")]
            body = "".join(f"{line}\n" for line in lines if line != "(the server ended the answer)")
        self.body = body.encode()
        path = urlsplit(self.path).path
        self.kind = {"services": SERVICE, "endpointslices": ENDPOINT_SLICE, "nodes": NODE}.get(
            path.rpartition("/")[2], ""
        )


WATCHES = ("08", "09", "10", "11", "12", "22")
BY_KIND = {resource.kind: resource for resource in resources("node0")}
SERVICES = BY_KIND[SERVICE]


# -- Requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "number"), [(SERVICE, "02"), (ENDPOINT_SLICE, "03"), (SERVICE_CIDR, "06")])
def test_a_list_is_asked_for_as_recorded(kind: str, number: str) -> None:
    assert BY_KIND[kind].list_path == Recording(number).path


def _asked(path: str) -> tuple[str, dict[str, str]]:
    return urlsplit(path).path, dict(parse_qsl(urlsplit(path).query))


def test_the_node_alone_is_listed() -> None:
    assert _asked(BY_KIND[NODE].list_path) == _asked(Recording("07").path)
    assert "fieldSelector=metadata.name%3Dnode0" in BY_KIND[NODE].list_path


@pytest.mark.parametrize(("kind", "number", "seconds"), [(ENDPOINT_SLICE, "09", 4), (NODE, "22", 3)])
def test_a_watch_is_asked_for_as_recorded(kind: str, number: str, seconds: int) -> None:
    recorded = Recording(number).path
    version = _asked(recorded)[1]["resourceVersion"]
    ours = BY_KIND[kind].watch_path(version, seconds)
    assert _asked(ours) == _asked(recorded)
    assert set(ours.partition("?")[2].split("&")) == set(recorded.partition("?")[2].split("&"))  # the encoding too


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (SERVICE, 'verbs ["list", "watch"] on resource "services" in apiGroup ""'),
        (ENDPOINT_SLICE, 'verbs ["list", "watch"] on resource "endpointslices" in apiGroup "discovery.k8s.io"'),
    ],
)
def test_the_rbac_rule_names_group_and_resource(kind: str, rule: str) -> None:
    assert BY_KIND[kind].rule == rule


# -- Lists -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "number", "names", "version"),
    [
        (SERVICE, "02", ["kubernetes", "web1", "web2", "web3"], "218"),
        (SERVICE, "04", ["kubernetes", "web1"], "219"),
        (ENDPOINT_SLICE, "03", ["kubernetes", "web1-a", "web2-a", "web3-a"], "219"),
        (SERVICE_CIDR, "06", ["kubernetes"], "20"),
        (NODE, "07", ["node0"], "210"),
    ],
)
def test_recorded_lists(kind: str, number: str, names: list[str], version: str) -> None:
    listed = read_list(kind, Recording(number).body)
    assert [obj.metadata.name for obj in listed.objects] == names
    assert listed.version == version
    assert listed.bad == []


def test_a_recorded_object_has_its_fields() -> None:
    (node,) = read_list(NODE, Recording("07").body).objects
    assert isinstance(node, Node)
    assert node.spec
    assert node.spec.pod_cidrs == ["10.244.0.0/24", "fd44::/64"]


def test_one_bad_item_leaves_the_others() -> None:
    answer = json.loads(Recording("02").body)
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


# -- Streams -----------------------------------------------------------------------------------------------------------


def read_stream(kind: str, pieces: list[bytes]) -> tuple[list[Event | BadObject], str, int | None]:
    """Everything found, the last version, and the trouble's status."""
    stream, found = Stream(kind, "0"), []
    for piece in pieces:
        batch = stream.feed(piece)
        found += batch.found
        if batch.trouble:
            return found, stream.version, batch.trouble.status
    stream.end()
    return found, stream.version, None


def shape(event: Event | BadObject) -> tuple[str, str]:
    if isinstance(event, Put):
        return "put", event.obj.metadata.name
    assert isinstance(event, Delete)
    return "delete", event.name


@pytest.mark.parametrize("number", WATCHES)
def test_recorded_watches(number: str) -> None:
    recording = Recording(number)
    lines = [json.loads(line) for line in recording.body.splitlines()]
    assert lines
    found, version, trouble = read_stream(recording.kind, [recording.body])
    expected = [
        ("delete" if line["type"] == "DELETED" else "put", line["object"]["metadata"]["name"])
        for line in lines
        if line["type"] != "BOOKMARK"
    ]
    assert [shape(event) for event in found] == expected
    assert version == lines[-1]["object"]["metadata"]["resourceVersion"]
    assert trouble is None


def test_an_object_that_leaves_the_selector_is_deleted() -> None:
    found, version, _ = read_stream(ENDPOINT_SLICE, [Recording("10").body])
    assert found == [Delete(ENDPOINT_SLICE, "default", "web2-a")]
    assert version == "229"


def test_a_bookmark_moves_the_version_only() -> None:
    bookmark = next(line for line in Recording("08").body.splitlines() if b"BOOKMARK" in line)
    stream = Stream(SERVICE, "219")
    assert stream.feed(bookmark + b"\n") == ([], None)
    assert (stream.version, stream.heard) == ("223", True)


@pytest.mark.parametrize(("number", "status"), [("13", 410), ("11b", 500)])
def test_recorded_errors_in_a_stream(number: str, status: int) -> None:
    stream = Stream(SERVICE, "236")
    found, trouble = stream.feed(Recording(number).body)
    assert found == []
    assert trouble
    assert trouble.status == status
    assert json.loads(Recording(number).body)["object"]["message"] in trouble.cause
    assert (stream.version, stream.heard) == ("236", False)


def test_what_came_before_an_error_counts() -> None:
    found, version, trouble = read_stream(SERVICE, [Recording("08").body + Recording("13").body])
    assert [shape(event)[0] for event in found] == ["put", "put", "delete"]
    assert (version, trouble) == ("223", 410)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


_RECORDED = {number: Recording(number) for number in (*WATCHES, "13", "11b")}


@given(st.data())
def test_it_does_not_matter_where_a_recorded_stream_is_cut(data: st.DataObject) -> None:
    recording = _RECORDED[data.draw(st.sampled_from(sorted(_RECORDED)))]
    places = data.draw(st.lists(st.integers(0, len(recording.body)), max_size=40))
    assert read_stream(recording.kind, cut(recording.body, places)) == read_stream(recording.kind, [recording.body])


def test_byte_by_byte() -> None:
    recording = Recording("09")
    pieces = [recording.body[i : i + 1] for i in range(len(recording.body))]
    assert read_stream(recording.kind, pieces) == read_stream(recording.kind, [recording.body])


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


def test_an_answer_that_ends_within_a_line_is_broken() -> None:
    stream = Stream(SERVICE, "1")
    stream.feed(Recording("08").body[:-20])
    with pytest.raises(Trouble) as caught:
        stream.end()
    assert caught.value.status == BROKEN


@pytest.mark.parametrize(
    "line",
    [b"<html>", b"{}", b'{"type":"ADDED"}', b'{"type":"RENAMED","object":{}}', b'{"type":"ERROR","object":7}', b"\xff"],
)
def test_what_is_no_event_is_nonsense(line: bytes) -> None:
    assert read_stream(SERVICE, [line + b"\n"])[2] == NONSENSE


@given(st.binary(max_size=80))
def test_no_bytes_make_it_fall(noise: bytes) -> None:
    batch = Stream(SERVICE, "1").feed(noise + b"\n")
    assert batch.found == []


# -- What to do next ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "status", "following"),
    [
        (Step.LIST, UNREACHABLE, Step.LIST),
        (Step.WATCH, UNREACHABLE, Step.WATCH),
        (Step.WATCH, BROKEN, Step.WATCH),
        (Step.WATCH, NONSENSE, Step.LIST),
        (Step.WATCH, 400, Step.LIST),
        (Step.WATCH, 401, Step.WATCH),
        (Step.LIST, 403, Step.LIST),
        (Step.WATCH, 403, Step.WATCH),
        (Step.WATCH, 404, Step.LIST),
        (Step.WATCH, 410, Step.LIST),
        (Step.WATCH, 422, Step.LIST),
        (Step.WATCH, 429, Step.WATCH),
        (Step.WATCH, 500, Step.WATCH),
        (Step.LIST, 504, Step.LIST),
    ],
)
def test_what_follows_trouble(step: Step, status: int, following: Step) -> None:
    after = what_next(step, Trouble(status, ""), failures=0, rand=0.0)
    assert after.step is following
    assert (after.pause == 0) == (status == 410)


def test_expired_again_and_again_is_not_without_pause() -> None:
    assert what_next(Step.WATCH, Trouble(410, ""), failures=1, rand=0.0).pause > 0


def test_retry_after_is_the_least_pause() -> None:
    assert what_next(Step.LIST, Trouble(503, "", 17), failures=0, rand=0.9).pause == 17
    assert what_next(Step.LIST, Trouble(503, "", 1), failures=30, rand=0.9).pause > 1


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_backoff_grows_to_its_limit(failures: int, rand: float) -> None:
    pause = backoff(failures, rand)
    assert 0.1 <= pause <= BACKOFF_MAX
    assert pause <= backoff(failures + 1, rand)
    assert failures < 8 or pause >= BACKOFF_MAX / 2


@pytest.mark.parametrize("number", ["14", "16", "17", "18", "19", "20", "21"])
def test_recorded_refusals(number: str) -> None:
    recording = Recording(number)
    trouble = refusal(recording.status, recording.headers.get("Retry-After", ""), recording.body)
    assert trouble.status == recording.status == json.loads(recording.body)["code"]
    assert json.loads(recording.body)["message"][:100] in trouble.cause
    assert trouble.retry_after == (1 if number == "16" else 0)


@pytest.mark.parametrize(
    ("header", "seconds"), [("", 0), ("5", 5), ("86400", 60), ("Wed, 21 Oct 2026 07:28:00 GMT", 0), ("-1", 0), ("²", 0)]
)
def test_retry_after_has_a_limit(header: str, seconds: float) -> None:
    assert refusal(503, header, b"<html>\n busy\xff").retry_after == seconds


# -- The loop ----------------------------------------------------------------------------------------------------------


class Said:
    """A scripted answer: pieces that come one read at a time, then `then` is raised, or the answer ends."""

    def __init__(
        self, *pieces: bytes, status: int = 200, headers: dict[str, str] | None = None, then: Trouble | None = None
    ) -> None:
        self.status, self._pieces, self._headers, self._then = status, pieces, headers or {}, then

    def header(self, name: str) -> str:
        return self._headers.get(name, "")

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        yield from self._pieces
        if self._then:
            raise self._then


class Script:
    """Transport, clock, inbox and sleep in one: gives the answers in order, writes down what happens, then stops."""

    def __init__(self, *answers: Said | Trouble, resource: Resource = SERVICES) -> None:
        self.answers = list(answers)
        self.did: list[Any] = []  # "list", ("watch", version), ("sleep", seconds), and the events of each put, a tuple
        self.timeouts: list[tuple[dict[str, str], float]] = []
        self.stop = threading.Event()
        self.now = 1000.0
        self.inbox = Inbox()
        self.inbox.put = lambda *events: self.did.append(events)  # type: ignore[method-assign]
        self.watcher = Watcher(
            self, resource, self.inbox, self.stop, clock=lambda: self.now, rand=lambda: 0.5, sleep=self.sleep
        )

    @contextmanager
    def get(self, path: str, *, read_timeout: float, compressed: bool = False) -> Iterator[Said]:
        query = dict(parse_qsl(urlsplit(path).query))
        self.timeouts.append((query, read_timeout))
        self.did.append(("watch", query["resourceVersion"]) if "watch" in query else "list")
        if not self.answers:
            self.stop.set()
            raise Trouble(UNREACHABLE, "the script is over")
        answer = self.answers.pop(0)
        if isinstance(answer, Trouble):
            raise answer
        assert compressed != ("watch" in query)
        yield answer

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if seconds:
            self.did.append(("sleep", seconds))

    def run(self) -> list[Any]:
        self.watcher.run()
        return self.did


def steps(did: list[Any]) -> list[str]:
    """What was asked and slept, without the details: 'list', 'watch', 'sleep'."""
    names = [item if isinstance(item, str) else item[0] for item in did]
    return [name for name in names if isinstance(name, str)]


def batches(did: list[Any]) -> list[tuple[Event, ...]]:
    """The events of each put."""
    return [item for item in did if isinstance(item, tuple) and not isinstance(item[0], str)]


LIST = Recording("02").body  # version 218
LINES = [line + b"\n" for line in Recording("08").body.splitlines()]  # web4: 221, 222, 223 (deleted), bookmark 223
GONE = Recording("13").body


def tale(*answers: Said | Trouble, resource: Resource = SERVICES) -> list[Any]:
    return Script(*answers, resource=resource).run()


def test_list_then_watch_from_its_version() -> None:
    did = tale(Said(LIST))
    assert did[0] == "list"
    (replace,) = did[1]
    assert replace.kind == SERVICE
    assert [obj.metadata.name for obj in replace.objects] == ["kubernetes", "web1", "web2", "web3"]
    assert did[2:] == [("watch", "218")]


def test_an_ended_watch_goes_on_without_pause_or_list() -> None:
    did = tale(Said(LIST), Said(LINES[0]), Said(LINES[1], LINES[3]))
    assert [item for item in did if item[0] == "watch"] == [("watch", "218"), ("watch", "221"), ("watch", "223")]
    assert steps(did) == ["list", "watch", "watch", "watch"]


def test_all_lines_of_one_read_are_left_together() -> None:
    did = tale(Said(LIST), Said(LINES[0] + LINES[1] + LINES[2][:50], LINES[2][50:] + LINES[3]))
    _, *puts = batches(did)
    assert [[shape(event)[0] for event in events] for events in puts] == [["put", "put"], ["delete"]]


def test_nothing_is_put_for_a_bookmark() -> None:
    did = tale(Said(LIST), Said(LINES[3]))
    assert did[2:] == [("watch", "218"), ("watch", "223")]


@pytest.mark.parametrize(
    "broken", [Said(LINES[0], LINES[1][:9], then=Trouble(BROKEN, "reset")), Said(LINES[0], LINES[1][:9])]
)
def test_a_broken_watch_goes_on_from_its_last_version(broken: Said) -> None:
    did = tale(Said(LIST), broken)
    assert did[-2:] == [("sleep", pytest.approx(0.15)), ("watch", "221")]
    assert did.count("list") == 1


def test_expired_within_the_stream_lists_at_once_and_replaces() -> None:
    did = tale(Said(LIST), Said(GONE), Said(LIST))
    assert did[2:4] == [("watch", "218"), "list"]
    assert isinstance(did[4][0], Replace)


def test_expired_as_a_status_lists_at_once() -> None:
    did = tale(Said(LIST), Said(Recording("14").body, status=410), Said(LIST))
    assert did[2:4] == [("watch", "218"), "list"]


def test_a_server_that_always_says_expired_is_not_asked_without_pause() -> None:
    did = tale(Said(LIST), Said(GONE), Said(LIST), Said(GONE), Said(LIST))
    assert steps(did) == ["list", "watch", "list", "watch", "sleep", "list", "watch"]


def test_a_future_version_waits_as_told() -> None:
    refused = Said(Recording("16").body, status=504, headers={"Retry-After": "1"})
    assert tale(refused, Said(LIST))[:3] == ["list", ("sleep", 1.0), "list"]


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_respected_in_both_steps(status: int) -> None:
    def refused(seconds: str) -> Said:
        return Said(b"{}", status=status, headers={"Retry-After": seconds})

    did = tale(refused("7"), Said(LIST), refused("3600"))
    assert did[:2] == ["list", ("sleep", 7)]
    assert did[-3:] == [("watch", "218"), ("sleep", 60), ("watch", "218")]


@pytest.mark.parametrize("status", [400, 422])
def test_a_refused_watch_lists_again_after_a_pause(status: int) -> None:
    did = tale(Said(LIST), Said(b"{}", status=status))
    assert did[2:] == [("watch", "218"), ("sleep", pytest.approx(0.15)), "list"]


def test_forbidden_says_what_to_grant_and_goes_on() -> None:
    with capture_logs() as logs:
        refused = [Said(Recording("20").body, status=403) for _ in range(3)]
        did = tale(*refused, Said(LIST))
    (entry,) = [entry for entry in logs if entry["event"] == "api_forbidden"]
    assert entry["kind"] == SERVICE
    assert 'resource "services" in apiGroup ""' in entry["remedy"]
    assert "system:anonymous" in entry["cause"]
    assert did.count("list") == 4
    assert isinstance(did[-2][0], Replace)


def test_unauthorized_is_logged_and_tried_again() -> None:
    with capture_logs() as logs:
        did = tale(Said(Recording("19").body, status=401), Said(LIST))
    assert [entry["event"] for entry in logs][:1] == ["api_unauthorized"]
    assert did[0] == did[2] == "list"


def test_pauses_grow_and_start_anew_after_success() -> None:
    away = Trouble(UNREACHABLE, "refused")
    did = tale(away, away, away, Said(LIST), Said(LINES[0]), away)
    assert [item[1] for item in did if item[0] == "sleep"] == [pytest.approx(p) for p in (0.15, 0.3, 0.6, 0.15)]


def test_the_cause_is_logged_when_it_changes() -> None:
    refused, timeout = Trouble(UNREACHABLE, "refused"), Trouble(UNREACHABLE, "timed out")
    with capture_logs() as logs:
        did = tale(refused, refused, refused, timeout, timeout, refused, Said(LIST), Said(LINES[0]), refused)
    told = [entry.get("cause", entry["event"]) for entry in logs]
    assert told == ["refused", "timed out", "refused", "api_list_done", "watch_works_again", "refused"]
    assert steps(did).count("list") == 7


def test_nothing_is_put_while_the_server_is_away() -> None:
    did = tale(*[Trouble(UNREACHABLE, "refused")] * 50)
    assert batches(did) == []
    assert set(steps(did)) == {"list", "sleep"}
    assert max(item[1] for item in did if item[0] == "sleep") <= BACKOFF_MAX


def test_a_list_that_is_no_list_is_tried_again() -> None:
    did = tale(Said(b"<html>"), Said(LIST))
    assert steps(did) == ["list", "sleep", "list", "watch"]


def test_noise_in_a_watch_lists_again() -> None:
    did = tale(Said(LIST), Said(LINES[0], b"noise\n"))
    assert did[-2:] == [("sleep", pytest.approx(0.15)), "list"]


def broken_object(line: bytes) -> bytes:
    event = json.loads(line)
    event["object"]["spec"]["ports"] = "none"
    return json.dumps(event).encode() + b"\n"


def test_an_object_that_cannot_be_read_is_deleted_and_logged_once() -> None:
    with capture_logs() as logs:
        script = Script(
            Said(LIST), Said(LINES[0], broken_object(LINES[1]), broken_object(LINES[1])), Said(LINES[0]), Said(LINES[2])
        )
        left_out: list[int] = []
        put = script.inbox.put

        def counted(*events: Event) -> None:
            put(*events)
            left_out.append(len(script.watcher.left_out))

        script.inbox.put = counted  # type: ignore[method-assign]
        did = script.run()
    _, *puts = batches(did)
    assert [shape(event) for events in puts for event in events] == [
        ("put", "web4"),
        *[("delete", "web4")] * 2,
        ("put", "web4"),
        ("delete", "web4"),
    ]
    (entry,) = [entry for entry in logs if entry["event"] == "object_left_out"]
    assert (entry["kind"], entry["namespace"], entry["name"]) == (SERVICE, "default", "web4")
    assert "$.spec.ports" in entry["reason"]
    assert left_out == [0, 0, 1, 1, 0, 0]
    assert did[-1] == ("watch", "223")  # the version of an object that cannot be read counts, too: no loop


def test_a_bad_object_in_a_list_is_logged_once_over_lists() -> None:
    answer = json.loads(LIST)
    answer["items"][1]["spec"]["ports"] = 7
    spoiled = Said(json.dumps(answer).encode())
    with capture_logs() as logs:
        script = Script(spoiled, Said(GONE), spoiled)
        did = script.run()
    assert [len(replace.objects) for (replace,) in batches(did) if isinstance(replace, Replace)] == [3, 3]
    assert [entry["name"] for entry in logs if entry["event"] == "object_left_out"] == ["web1"]
    assert script.watcher.left_out.keys() == {("default", "web1")}


def test_a_server_without_the_resource_means_no_objects() -> None:
    missing = Said(Recording("21").body, status=404)
    with capture_logs() as logs:
        did = tale(
            missing,
            missing,
            missing,
            Said(Recording("06").body),
            Said(b"", status=404),
            missing,
            resource=BY_KIND[SERVICE_CIDR],
        )
    assert [item for item in did if item[0] == "sleep"][:3] == [("sleep", ABSENT_RETRY)] * 3
    assert [len(replace.objects) for (replace,) in batches(did) if isinstance(replace, Replace)] == [0, 1, 0]
    assert len([entry for entry in logs if entry["event"] == "api_resource_missing"]) == 3  # twice for its going


def test_a_server_without_services_is_trouble() -> None:
    did = tale(Said(Recording("21").body, status=404))
    assert batches(did) == []
    assert steps(did) == ["list", "sleep", "list"]


def test_a_watch_that_ends_at_once_is_not_repeated_without_pause() -> None:
    assert tale(Said(LIST), Said(), Said())[2:] == [
        ("watch", "218"),
        ("sleep", pytest.approx(0.15)),
        ("watch", "218"),
        ("sleep", pytest.approx(0.3)),
        ("watch", "218"),
    ]


class Quiet(Said):
    """A watch that stands for `seconds` in silence, and ends as it should."""

    def __init__(self, pass_time: Callable[[], None]) -> None:
        super().__init__()
        self._pass_time = pass_time

    def pieces(self) -> Iterator[bytes]:
        self._pass_time()
        yield from ()


def test_a_version_that_the_server_never_speaks_of_is_given_up() -> None:
    script = Script()

    def pass_time() -> None:
        script.now += 400

    script.answers = [Said(LIST), *[Quiet(pass_time) for _ in range(5)]]
    script.run()
    watches = int(SILENCE // 400) + 1
    assert steps(script.did) == ["list", *["watch"] * watches, "list"]


def test_a_watch_outlives_its_server_side_end() -> None:
    script = Script(Said(LIST))
    script.run()
    query, read_timeout = script.timeouts[-1]
    seconds = int(query["timeoutSeconds"])
    assert WATCH_SECONDS[0] <= seconds <= WATCH_SECONDS[1]
    assert read_timeout == seconds + READ_SLACK
    assert query["allowWatchBookmarks"] == "true"


def test_stop_ends_the_loop_wherever_it_is() -> None:
    script = Script(Said(LIST), *[Said(LINES[3])] * 5)
    put = script.inbox.put

    def stop_after(*events: Event) -> None:
        put(*events)
        script.stop.set()

    script.inbox.put = stop_after  # type: ignore[method-assign]
    with capture_logs() as logs:
        script.run()
    assert len(script.answers) == 5
    assert [entry["event"] for entry in logs] == ["api_list_done"]
    assert logs[0]["count"] == 4


def test_a_service_of_the_stream_is_complete() -> None:
    event = next(item[0] for item in tale(Said(LIST), Said(LINES[0])) if isinstance(item[0], Put))
    assert isinstance(event.obj, Service)
    assert event.obj.spec.cluster_ip == "10.96.20.4"
    assert event.obj.metadata.resource_version == "221"
