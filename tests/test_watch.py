"""proxy.watch against a scripted API server: what it asks for, when, and what it tells of the answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from structlog.testing import capture_logs

from proxy.events import Delete, Event, Inbox, Put, Replace
from proxy.model import ENDPOINT_SLICE, NODE, SERVICE, SERVICE_CIDR
from proxy.resources import Resource, resources
from proxy.trouble import BACKOFF_MAX, BROKEN, SILENT, UNREACHABLE, Trouble
from proxy.watch import (
    ABSENT_RETRY,
    HEAD_TIMEOUT,
    LIST_SILENCE,
    LIST_TIMEOUT,
    NO_STREAMING_SECONDS,
    SILENCE,
    STREAM_SECONDS,
    STREAM_SILENCE,
    STREAM_TRIES,
    WATCH_SECONDS,
    WATCH_SILENCE,
    Watcher,
)
from tests.recordings import Exchange

BY_KIND = {resource.kind: resource for resource in resources("node0")}
SERVICES = BY_KIND[SERVICE]


# -- Requests ----------------------------------------------------------------------------------------------------------


def asked(path: str) -> tuple[str, dict[str, str]]:
    return urlsplit(path).path, dict(parse_qsl(urlsplit(path).query, keep_blank_values=True))


def same_request(ours: str, recorded: str, *added: str) -> bool:
    """The same but for the order; `added`: what the recording does not have. The encoding counts."""
    (path, _, query), (recorded_path, _, recorded_query) = ours.partition("?"), recorded.partition("?")
    return path == recorded_path and set(query.split("&")) == {*recorded_query.split("&"), *added}


SELECTOR = "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name"


@pytest.mark.parametrize(("kind", "number"), [(SERVICE, "02"), (ENDPOINT_SLICE, "03"), (SERVICE_CIDR, "06")])
def test_a_list_is_asked_for_as_recorded(kind: str, number: str) -> None:
    assert BY_KIND[kind].list_path("0") == Exchange(number).path


def test_a_list_that_must_not_be_older_is_asked_for_as_recorded() -> None:
    assert same_request(SERVICES.list_path("99999999"), Exchange("16").path, SELECTOR)


def test_the_newest_list_names_no_version() -> None:
    assert SERVICES.list_path("") == f"/api/v1/services?{SELECTOR}"
    assert BY_KIND[SERVICE_CIDR].list_path("") == "/apis/networking.k8s.io/v1/servicecidrs"


def test_the_node_alone_is_listed() -> None:
    assert asked(BY_KIND[NODE].list_path("0")) == asked(Exchange("07").path)
    assert "fieldSelector=metadata.name%3Dnode0" in BY_KIND[NODE].list_path("0")


def test_a_streaming_list_is_asked_for_as_recorded() -> None:
    recorded = Exchange("11").path
    assert same_request(SERVICES.stream_path("", 4), recorded, SELECTOR)
    assert same_request(SERVICES.stream_path("231", 4), recorded, SELECTOR, "resourceVersion=231")


@pytest.mark.parametrize(("kind", "number", "seconds"), [(ENDPOINT_SLICE, "09", 4), (NODE, "22", 3)])
def test_a_watch_is_asked_for_as_recorded(kind: str, number: str, seconds: int) -> None:
    recorded = Exchange(number).path
    assert same_request(BY_KIND[kind].watch_path(asked(recorded)[1]["resourceVersion"], seconds), recorded)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (SERVICE, 'verbs ["list", "watch"] on resource "services" in apiGroup ""'),
        (ENDPOINT_SLICE, 'verbs ["list", "watch"] on resource "endpointslices" in apiGroup "discovery.k8s.io"'),
    ],
)
def test_the_rbac_rule_names_group_and_resource(kind: str, rule: str) -> None:
    assert BY_KIND[kind].rule == rule


# -- The script --------------------------------------------------------------------------------------------------------


class Said:
    """A scripted answer: pieces that come one read at a time, then `then` is raised, or the answer ends."""

    def __init__(
        self, *pieces: bytes, status: int = 200, headers: dict[str, str] | None = None, then: Trouble | None = None
    ) -> None:
        self.status, self._pieces, self._headers, self._then = status, pieces, headers or {}, then
        self.server = "one"
        self.waits: list[float] = []
        self.avoided = 0

    def header(self, name: str) -> str:
        return self._headers.get(name, "")

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        yield from self._pieces
        if self._then:
            raise self._then

    def wait_up_to(self, seconds: float) -> None:
        self.waits.append(seconds)

    def avoid(self) -> None:
        self.avoided += 1


class Passing(Said):
    """An answer during which time passes: after each piece, and once when there is none."""

    def __init__(self, script: Script, seconds: float, *pieces: bytes, then: Trouble | None = None) -> None:
        super().__init__(*pieces, then=then)
        self._script, self._seconds = script, seconds

    def pieces(self) -> Iterator[bytes]:
        if not self._pieces:
            self._script.now += self._seconds
        for piece in super().pieces():
            self._script.now += self._seconds
            yield piece


class Script:
    """Transport, clock, inbox and sleep in one: gives the answers in order, writes down what happens, then stops.

    did: ("list" | "stream" | "watch", resourceVersion), ("sleep", seconds), and the events of each put, a tuple.
    streams: the server does streaming lists; else it has said no before.
    """

    def __init__(self, *answers: Said | Trouble, resource: Resource = SERVICES, streams: bool = False) -> None:
        self.answers = list(answers)
        self.did: list[Any] = []
        self.timeouts: list[tuple[dict[str, str], float]] = []
        self.stop = threading.Event()
        self.now = 1000.0
        self.server = "one"
        self.inbox = Inbox()
        self.inbox.put = lambda *events: self.did.append(events)  # type: ignore[method-assign]
        self.watcher = Watcher(
            self, resource, self.inbox, self.stop, clock=lambda: self.now, rand=lambda: 0.5, sleep=self.sleep
        )
        if not streams:
            self.watcher._plain_until["one"] = float("inf")

    @contextmanager
    def get(self, path: str, *, read_timeout: float, compressed: bool = False) -> Iterator[Said]:
        query = asked(path)[1]
        self.timeouts.append((query, read_timeout))
        how = "stream" if "sendInitialEvents" in query else "watch" if "watch" in query else "list"
        self.did.append((how, query.get("resourceVersion", "")))
        if not self.answers:
            self.stop.set()
            raise Trouble(UNREACHABLE, "the script is over")
        answer = self.answers.pop(0)
        if isinstance(answer, Trouble):
            raise answer
        assert compressed == (how == "list")
        yield answer

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if seconds:
            self.did.append(("sleep", seconds))

    def run(self) -> list[Any]:
        self.watcher.run()
        return self.did


def steps(did: list[Any]) -> list[str]:
    """What was asked and slept, without the details: 'list', 'stream', 'watch', 'sleep'."""
    return [item[0] for item in did if isinstance(item[0], str)]


def requests(did: list[Any]) -> list[tuple[str, str]]:
    """What was asked, and from which version."""
    return [item for item in did if item[0] in ("list", "stream", "watch")]


def batches(did: list[Any]) -> list[tuple[Event, ...]]:
    """The events of each put."""
    return [item for item in did if not isinstance(item[0], str)]


def shape(event: Event) -> tuple[str, str]:
    if isinstance(event, Put):
        return "put", event.obj.metadata.name
    assert isinstance(event, Delete)
    return "delete", event.name


def names(batch: tuple[Event, ...]) -> list[str]:
    """Of a Replace."""
    (replace,) = batch
    assert isinstance(replace, Replace)
    return [obj.metadata.name for obj in replace.objects]


FIRST = ["kubernetes", "web1", "web2", "web3"]
LIST = Exchange("02").body  # version 218
LINES = Exchange("08").body.splitlines(keepends=True)  # web4: 221, 222, 223 (deleted), bookmark 223
GONE = Exchange("13").body
TOO_LARGE = Exchange("16").body
STREAM = Exchange("11").body.splitlines(keepends=True)  # FIRST, end mark 231; web4: 233, 234, 235 (deleted), bookmark


def tale(*answers: Said | Trouble, resource: Resource = SERVICES, streams: bool = False) -> list[Any]:
    return Script(*answers, resource=resource, streams=streams).run()


def too_large() -> Said:
    return Said(TOO_LARGE, status=504, headers={"Retry-After": "1"})


# -- Lists and watches -------------------------------------------------------------------------------------------------
def test_list_then_watch_from_its_version() -> None:
    did = tale(Said(LIST))
    assert did[0] == ("list", "0")
    assert names(did[1]) == FIRST
    assert did[1][0].kind == SERVICE
    assert did[2:] == [("watch", "218")]


def test_an_ended_watch_goes_on_without_pause_or_list() -> None:
    did = tale(Said(LIST), Said(LINES[0]), Said(LINES[1], LINES[3]))
    assert requests(did) == [("list", "0"), ("watch", "218"), ("watch", "221"), ("watch", "223")]
    assert steps(did) == ["list", "watch", "watch", "watch"]


def test_all_lines_of_one_read_are_left_together() -> None:
    did = tale(Said(LIST), Said(LINES[0] + LINES[1] + LINES[2][:50], LINES[2][50:] + LINES[3]))
    _, *puts = batches(did)
    assert [[shape(event)[0] for event in events] for events in puts] == [["put", "put"], ["delete"]]


def test_nothing_is_put_for_a_bookmark() -> None:
    did = tale(Said(LIST), Said(LINES[3]))
    assert did[2:] == [("watch", "218"), ("watch", "223")]


def test_nothing_is_put_for_what_comes_late() -> None:
    did = tale(Said(LIST), Said(LINES[1] + LINES[0]), Said(LINES[0]))
    assert [shape(event) for batch in batches(did)[1:] for event in batch] == [("put", "web4")]
    assert requests(did)[-2:] == [("watch", "222"), ("watch", "222")]


@pytest.mark.parametrize(
    "broken", [Said(LINES[0], LINES[1][:9], then=Trouble(BROKEN, "reset")), Said(LINES[0], LINES[1][:9])]
)
def test_a_broken_watch_goes_on_from_its_last_version(broken: Said) -> None:
    did = tale(Said(LIST), broken)
    assert did[-2:] == [("sleep", pytest.approx(0.15)), ("watch", "221")]
    assert steps(did).count("list") == 1


def test_what_came_before_a_reset_is_told() -> None:
    did = tale(Said(LIST), Said(LINES[0], then=Trouble(BROKEN, "reset")))
    assert [shape(event) for event in batches(did)[1]] == [("put", "web4")]


def test_retry_after_is_respected_in_both_steps() -> None:
    for status in (429, 503):

        def refused(seconds: str, status: int = status) -> Said:
            return Said(b"{}", status=status, headers={"Retry-After": seconds})

        did = tale(refused("7"), Said(LIST), refused("3600"))
        assert did[:2] == [("list", "0"), ("sleep", 7)]
        assert did[-3:] == [("watch", "218"), ("sleep", 60), ("watch", "218")]


def test_retry_after_may_be_a_time() -> None:
    headers = {"Retry-After": "Wed, 21 Oct 2026 07:28:09 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}
    assert tale(Said(b"{}", status=429, headers=headers))[1] == ("sleep", 9)


@pytest.mark.parametrize("status", [400, 422])
def test_a_refused_watch_lists_again_after_a_pause(status: int) -> None:
    did = tale(Said(LIST), Said(b"{}", status=status))
    assert did[2:] == [("watch", "218"), ("sleep", pytest.approx(0.15)), ("list", "218")]


def test_forbidden_says_what_to_grant_and_goes_on() -> None:
    with capture_logs() as logs:
        refused = [Said(Exchange("20").body, status=403) for _ in range(3)]
        did = tale(*refused, Said(LIST))
    (entry,) = [entry for entry in logs if entry["event"] == "api_forbidden"]
    assert entry["kind"] == SERVICE
    assert 'resource "services" in apiGroup ""' in entry["remedy"]
    assert "system:anonymous" in entry["cause"]
    assert steps(did).count("list") == 4
    assert isinstance(did[-2][0], Replace)


def test_unauthorized_is_logged_and_tried_again() -> None:
    with capture_logs() as logs:
        did = tale(Said(Exchange("19").body, status=401), Said(LIST))
    assert [entry["event"] for entry in logs][:1] == ["api_unauthorized"]
    assert did[0] == did[2] == ("list", "0")


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


@pytest.mark.parametrize("streams", [False, True])
def test_nothing_is_put_while_the_server_is_away(streams: bool) -> None:
    did = tale(*[Trouble(UNREACHABLE, "refused")] * 50, streams=streams)
    assert batches(did) == []
    assert set(steps(did)) == {"stream" if streams else "list", "sleep"}
    assert max(item[1] for item in did if item[0] == "sleep") <= BACKOFF_MAX


def test_a_list_that_is_no_list_is_tried_again() -> None:
    did = tale(Said(b"<html>"), Said(LIST))
    assert steps(did) == ["list", "sleep", "list", "watch"]


def test_noise_in_a_watch_lists_again() -> None:
    did = tale(Said(LIST), Said(LINES[0], b"noise\n"))
    assert did[-2:] == [("sleep", pytest.approx(0.15)), ("list", "221")]


def test_a_watch_that_ends_at_once_is_not_repeated_without_pause() -> None:
    assert tale(Said(LIST), Said(), Said())[2:] == [
        ("watch", "218"),
        ("sleep", pytest.approx(0.15)),
        ("watch", "218"),
        ("sleep", pytest.approx(0.3)),
        ("watch", "218"),
    ]


# -- Never back in time ------------------------------------------------------------------------------------------------


def expired_status() -> Said:
    return Said(Exchange("14").body, status=410)


@pytest.mark.parametrize("gone", [Said(GONE), expired_status()])
def test_expired_lists_at_once_and_replaces(gone: Said) -> None:
    did = tale(Said(LIST), gone, Said(LIST))
    assert did[2:4] == [("watch", "218"), ("list", "218")]  # 218 or newer: it may be another server that answers
    assert names(did[4]) == FIRST


def test_a_list_is_never_older_than_what_was_seen_last() -> None:
    assert requests(tale(Said(LIST), Said(LINES[0], LINES[3], GONE)))[-1] == ("list", "223")


def test_a_server_that_always_says_expired_is_not_asked_without_pause() -> None:
    did = tale(Said(LIST), Said(GONE), Said(LIST), Said(GONE), Said(LIST))
    assert steps(did) == ["list", "watch", "list", "watch", "sleep", "list", "watch"]


def test_a_server_that_lags_behind_is_asked_for_the_newest_after_the_pause_that_it_wants() -> None:
    with capture_logs() as logs:
        did = tale(Said(LIST), Said(GONE), too_large(), Said(LIST), Said(GONE))
    assert did[2:6] == [("watch", "218"), ("list", "218"), ("sleep", 1.0), ("list", "")]
    assert requests(did)[-1] == ("list", "218")  # that was for once
    (entry,) = [entry for entry in logs if entry["event"] == "api_server_behind"]
    assert "Too large resource version" in entry["cause"]


@pytest.mark.parametrize("lost", [expired_status(), Said(b"{}", status=400)])
def test_a_version_that_cannot_be_listed_at_is_given_up_for_the_newest(lost: Said) -> None:
    assert requests(tale(Said(LIST), Said(GONE), lost, Said(LIST)))[2:] == [
        ("list", "218"),
        ("list", ""),
        ("watch", "218"),
    ]


def test_a_gateway_that_times_out_does_not_make_it_the_newest() -> None:
    did = tale(Said(LIST), Said(GONE), Said(b"upstream request timeout", status=504), Said(LIST))
    assert requests(did)[2:4] == [("list", "218"), ("list", "218")]


# -- Streaming lists ---------------------------------------------------------------------------------------------------


def test_a_streaming_list_goes_on_as_the_watch() -> None:
    script = Script(Said(*STREAM), streams=True)
    did = script.run()
    assert requests(did) == [("stream", ""), ("watch", "235")]
    assert names(did[1]) == FIRST
    assert [shape(event)[0] for batch in batches(did)[1:] for event in batch] == ["put", "put", "delete"]
    assert (script.watcher.mode, script.watcher.relists) == ("streaming", 0)


def test_the_list_and_what_follows_it_in_one_read() -> None:
    did = tale(Said(b"".join(STREAM)), streams=True)
    first, second = batches(did)
    assert names(first) == FIRST
    assert [shape(event)[0] for event in second] == ["put", "put", "delete"]


@pytest.mark.parametrize("lines", range(5))
def test_a_streaming_list_that_breaks_tells_nothing_and_starts_again(lines: int) -> None:
    did = tale(Said(*STREAM[:lines], then=Trouble(BROKEN, "reset")), Said(*STREAM), streams=True)
    assert did[:3] == [("stream", ""), ("sleep", pytest.approx(0.15)), ("stream", "")]
    assert names(did[3]) == FIRST


def test_a_streaming_list_that_ends_early_is_a_broken_one() -> None:
    assert requests(tale(Said(*STREAM[:3]), streams=True)) == [("stream", ""), ("stream", "")]


def test_streaming_lists_that_break_again_and_again_are_given_up() -> None:
    """Something on the way may end long answers that have no length."""
    broken = [Said(STREAM[0], then=Trouble(BROKEN, "reset")) for _ in range(STREAM_TRIES)]
    did = tale(*broken, Said(LIST), streams=True)
    assert requests(did) == [("stream", "")] * STREAM_TRIES + [("list", "0"), ("watch", "218")]


def test_an_unreachable_server_is_no_reason_to_give_up_streaming() -> None:
    away = [Trouble(UNREACHABLE, "refused")] * 9
    assert requests(tale(*away, Said(*STREAM), streams=True))[-2:] == [("stream", ""), ("watch", "235")]


def test_expired_after_a_streaming_list_streams_again() -> None:
    did = tale(Said(*STREAM, GONE), Said(*STREAM), streams=True)
    assert requests(did) == [("stream", ""), ("stream", "235"), ("watch", "235")]
    assert names(batches(did)[-4]) == FIRST


def test_a_stream_that_breaks_after_its_list_goes_on_as_a_watch() -> None:
    did = tale(Said(*STREAM[:6], then=Trouble(BROKEN, "reset")), streams=True)
    assert requests(did) == [("stream", ""), ("watch", "233")]


def test_a_server_that_always_says_expired_after_the_list_is_not_asked_without_pause() -> None:
    did = tale(*[Said(*STREAM[:5], GONE) for _ in range(3)], streams=True)
    assert steps(did) == ["stream", "stream", "sleep", "stream", "sleep", "stream"]


def in_the_stream(status: bytes) -> bytes:
    return b'{"type":"ERROR","object":' + status.strip() + b"}\n"


def test_a_lagging_server_says_so_in_the_stream() -> None:
    did = tale(Said(*STREAM, GONE), Said(in_the_stream(TOO_LARGE)), Said(*STREAM), streams=True)
    assert requests(did) == [("stream", ""), ("stream", "235"), ("stream", ""), ("watch", "235")]
    assert ("sleep", 1.0) in did


@pytest.mark.parametrize("refused", [400, 422])
def test_a_server_that_refuses_streaming_lists(refused: int) -> None:
    with capture_logs() as logs:
        did = tale(Said(Exchange("18").body, status=refused), Said(LIST), streams=True)
    assert did[:2] == [("stream", ""), ("list", "0")]  # at once
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == []
    assert [entry["event"] for entry in logs][:2] == ["no_streaming_list", "api_list_done"]
    assert "sendInitialEvents" in logs[0]["cause"]


def test_a_server_whose_storage_cannot_stream_lists() -> None:
    script = Script(Said(Exchange("11b").body), Said(LIST), streams=True)
    assert requests(script.run()) == [("stream", ""), ("list", "0"), ("watch", "218")]
    assert script.watcher.mode == "list"
    assert script.watcher.failures == 0


def test_a_server_that_does_not_know_of_streaming_lists_and_waits_for_changes() -> None:
    silent = Said(*STREAM[:4], then=Trouble(SILENT, "timed out"))
    did = tale(silent, Said(LIST), streams=True)
    assert requests(did) == [("stream", ""), ("list", "0"), ("watch", "218")]
    assert silent.waits == [STREAM_SILENCE]
    assert "sleep" not in steps(did)[:2]


def test_a_server_that_does_not_know_of_streaming_lists_and_has_changes_all_the_time() -> None:
    script = Script(streams=True)
    script.answers = [Passing(script, STREAM_SECONDS / 4, *STREAM[:4], STREAM[6], STREAM[6]), Said(LIST)]
    did = script.run()
    assert requests(did)[:2] == [("stream", ""), ("list", "0")]
    assert [names(batch) for batch in batches(did)] == [FIRST]


def test_it_is_remembered_for_a_while_and_for_that_server() -> None:
    script = Script(Said(b"", status=422), Said(LIST), Said(GONE), Said(LIST), streams=True)
    assert requests(script.run()) == [
        ("stream", ""),
        ("list", "0"),
        ("watch", "218"),
        ("list", "218"),
        ("watch", "218"),
    ]
    for now, server, how in [(NO_STREAMING_SECONDS - 1, "one", "list"), (NO_STREAMING_SECONDS, "one", "stream")]:
        again = Script(Said(b"", status=422), Said(LIST), streams=True)
        again.run()
        again.stop.clear()
        again.answers, again.now, again.server = [Said(GONE)], 1000.0 + now, server
        again.run()
        assert requests(again.did)[-1] == (how, "218")
    other = Script(Said(b"", status=422), Said(LIST), streams=True)
    other.run()
    other.stop.clear()
    other.answers, other.server = [Said(GONE)], "two"
    other.run()
    assert requests(other.did)[-1] == ("stream", "218")


def test_throttled_streaming_lists_wait() -> None:
    did = tale(Said(b"{}", status=429, headers={"Retry-After": "5"}), Said(*STREAM), streams=True)
    assert did[:3] == [("stream", ""), ("sleep", 5), ("stream", "")]


def test_a_server_error_in_a_stream_is_that_servers() -> None:
    fault = Said(STREAM[0], in_the_stream(b'{"code":503,"message":"shutting down"}'))
    later = Said(*STREAM[:6], in_the_stream(b'{"code":500,"message":"etcd"}'))
    expired = Said(GONE)
    tale(fault, later, expired, streams=True)
    assert (fault.avoided, later.avoided, expired.avoided) == (1, 1, 0)


# -- Objects that cannot be read ---------------------------------------------------------------------------------------


def broken_object(line: bytes) -> bytes:
    event = json.loads(line)
    event["object"]["spec"]["ports"] = "none"
    return json.dumps(event).encode() + b"\n"


def test_an_object_that_cannot_be_read_is_deleted_and_logged_once() -> None:
    with capture_logs() as logs:
        script = Script(Said(LIST), Said(LINES[0], broken_object(LINES[1]), broken_object(LINES[1])), Said(LINES[2]))
        left_out: list[int] = []
        put = script.inbox.put

        def counted(*events: Event) -> None:
            put(*events)
            left_out.append(len(script.watcher.left_out))

        script.inbox.put = counted  # type: ignore[method-assign]
        did = script.run()
    _, *puts = batches(did)
    assert [shape(event) for events in puts for event in events] == [("put", "web4"), *[("delete", "web4")] * 3]
    (entry,) = [entry for entry in logs if entry["event"] == "object_left_out"]
    assert (entry["kind"], entry["object"]) == (SERVICE, "Service default/web4")
    assert "$.spec.ports" in entry["reason"]
    assert left_out == [0, 0, 1, 1, 0]
    assert did[-1] == ("watch", "223")  # the version of an object that cannot be read counts, too: no loop


def test_an_object_that_can_be_read_again() -> None:
    script = Script(Said(LIST), Said(broken_object(LINES[0]), LINES[1]))
    script.run()
    assert script.watcher.left_out == {}


@pytest.mark.parametrize("streams", [False, True])
def test_a_bad_object_in_a_list_is_logged_once_over_lists(streams: bool) -> None:
    answer = json.loads(LIST)
    answer["items"][1]["spec"]["ports"] = 7
    spoiled = [json.dumps(answer).encode()]
    if streams:
        spoiled = [STREAM[0], broken_object(STREAM[1]), *STREAM[2:5]]
    with capture_logs() as logs:
        script = Script(Said(*spoiled), Said(GONE), Said(*spoiled), streams=streams)
        did = script.run()
    assert [len(names(batch)) for batch in batches(did)] == [3, 3]
    assert [entry["object"] for entry in logs if entry["event"] == "object_left_out"] == ["Service default/web1"]
    assert script.watcher.left_out.keys() == {("default", "web1")}
    assert script.watcher.relists == 1


# -- Resources that are not there --------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [False, True])
def test_a_server_without_the_resource_means_no_objects(streams: bool) -> None:
    def missing() -> Said:
        return Said(Exchange("21").body, status=404)

    listed = Said(Exchange("06").body)
    if streams:
        cidr = {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}}
        listed = Said(json.dumps({"type": "ADDED", "object": cidr}).encode() + b"\n", STREAM[4])
    gone = [] if streams else [missing()]
    with capture_logs() as logs:
        did = tale(
            missing(),
            missing(),
            missing(),
            listed,
            missing(),
            *gone,
            resource=BY_KIND[SERVICE_CIDR],
            streams=streams,
        )
    assert [item for item in did if item[0] == "sleep"][:3] == [("sleep", ABSENT_RETRY)] * 3
    assert [len(names(batch)) for batch in batches(did)] == [0, 1, 0]
    assert next(entry["event"] for entry in logs if entry["log_level"] == "warning") == "api_resource_missing"


def test_a_server_without_services_is_trouble() -> None:
    did = tale(Said(Exchange("21").body, status=404))
    assert batches(did) == []
    assert steps(did) == ["list", "sleep", "list"]


# -- Silence -----------------------------------------------------------------------------------------------------------


def test_how_long_each_answer_is_waited_for() -> None:
    listed, watched, streamed = Said(LIST), Said(), Said(*STREAM)
    script = Script(listed, watched)
    script.run()
    assert [timeout for _, timeout in script.timeouts[:2]] == [LIST_TIMEOUT, HEAD_TIMEOUT]
    assert (listed.waits, watched.waits) == ([LIST_SILENCE], [WATCH_SILENCE])
    script = Script(streamed, streams=True)
    script.run()
    assert script.timeouts[0][1] == HEAD_TIMEOUT
    assert streamed.waits == [STREAM_SILENCE, WATCH_SILENCE]  # the second from the end mark on


def test_the_server_ends_a_watch_in_good_time() -> None:
    script = Script(Said(LIST), Said(LINES[0]))
    script.run()
    query, _ = script.timeouts[-1]
    assert WATCH_SECONDS[0] <= int(query["timeoutSeconds"]) <= WATCH_SECONDS[1]
    assert query["allowWatchBookmarks"] == "true"


def test_a_silent_watch_begins_anew_from_where_it_was_and_is_no_failure() -> None:
    with capture_logs() as logs:
        script = Script()
        silent = Passing(script, WATCH_SILENCE, LINES[0], then=Trouble(SILENT, "timed out"))
        script.answers = [Said(LIST), silent]
        did = script.run()
    assert did[2:] == [("watch", "218"), batches(did)[1], ("watch", "221")]
    assert [entry["event"] for entry in logs if entry["log_level"] != "debug"] == ["api_list_done"]
    assert script.watcher.failures == 0


@pytest.mark.parametrize("ended", [False, True])
def test_a_version_that_the_server_never_speaks_of_is_given_up(ended: bool) -> None:
    """It may lie in the future of a server whose etcd was restored: its lists tell."""
    script = Script()
    quiet = [Passing(script, 400.0, then=None if ended else Trouble(SILENT, "timed out")) for _ in range(5)]
    script.answers = [Said(LIST), *quiet, too_large(), Said(LIST)]
    did = [item for item in script.run() if item[0] != "sleep"]
    watches = int(SILENCE // 400) + 1
    assert steps(did) == ["list", *["watch"] * watches, "list", "list", "watch"]
    assert requests(did)[-3:] == [("list", "218"), ("list", ""), ("watch", "218")]


def test_a_bookmark_from_the_past_is_silence() -> None:
    """A server that was set back to a state from before ours goes on with its own versions."""
    script = Script()
    past = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}, "spec": {}}}).encode()
    script.answers = [Said(LIST), *[Passing(script, 400.0, past + b"\n") for _ in range(5)]]
    assert requests(script.run())[-1] == ("list", "218")


def test_a_bookmark_is_a_sign_of_life() -> None:
    script = Script()
    script.answers = [Said(LIST), *[Passing(script, 400.0, LINES[3]) for _ in range(6)]]
    assert steps(script.run()) == ["list", *["watch"] * 7]


# -- To look at --------------------------------------------------------------------------------------------------------


def test_what_can_be_looked_at() -> None:
    script = Script(streams=True)
    watcher = script.watcher
    assert (watcher.mode, watcher.heard_at, watcher.failures, watcher.relists) == ("", 0.0, 0, 0)
    script.answers = [
        Trouble(UNREACHABLE, "away"),
        Said(b"", status=422),
        Said(LIST),
        Passing(script, 50.0, LINES[0]),
        Said(GONE),
        Said(LIST),
    ]
    script.run()
    assert (watcher.kind, watcher.mode, watcher.failures, watcher.relists) == (SERVICE, "list", 2, 1)
    assert watcher.heard_at == script.now


def test_heard_at_moves_with_every_sign_of_life() -> None:
    script = Script()
    script.answers = [Said(LIST), Passing(script, 50.0, LINES[0]), Passing(script, 60.0, then=Trouble(SILENT, ""))]
    script.run()
    assert script.watcher.heard_at == 1050.0
    assert script.now == 1110.0


# -- The end -----------------------------------------------------------------------------------------------------------


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
