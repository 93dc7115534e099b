"""What the status page's data say of an agent: summary, Services, what is left out, the last hour."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

from proxy.detect.findings import Finding
from proxy.events import Delete, TablesTouched
from proxy.measures import COMMIT_BOUNDS, Histogram
from proxy.status import look, services
from proxy.status.history import LENGTH, STEP, Ring
from proxy.status.search import find, words
from proxy.status.view import SILENT_SECONDS
from rules.changes import Touched
from rules.errors import Failure, TransactionError
from rules.fake import FakeKernel
from rules.layout import LAYOUTS
from rules.objects import Family
from rules.transaction import FlushChain
from tests.objects import endpoint_slice, service
from tests.status_world import NODE, Clock, StatusWorld, many

WEB = service("web", "10.96.0.1", "fd00::1", ports=[{"name": "http", "port": 80, "nodePort": 30080}], type="NodePort")
DNS = service(
    "dns",
    "10.96.0.10",
    namespace="kube-system",
    ports=[{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}],
    internalTrafficPolicy="Local",
)
ENDPOINTS = (
    endpoint_slice(
        "web", {"addresses": ["10.244.0.1"], "nodeName": NODE}, {"addresses": ["10.244.7.2"], "nodeName": "other"}
    ),
    endpoint_slice("web", "fd44::1", name="web-6"),
    endpoint_slice(
        "dns",
        {"addresses": ["10.244.0.53"], "nodeName": NODE},
        {"addresses": ["10.244.9.53"], "nodeName": "other"},
        {"addresses": ["10.244.9.54"], "nodeName": "other", "conditions": {"ready": False}},
        namespace="kube-system",
        ports=[{"name": "dns", "port": 5353, "protocol": "UDP"}, {"name": "dns-tcp", "port": 5353, "protocol": "TCP"}],
    ),
)


@pytest.fixture
def world() -> StatusWorld:
    made = StatusWorld()
    made.list(WEB, DNS, *ENDPOINTS)
    return made


def found(world: StatusWorld, query: str, show: str = "all") -> list[str]:
    return [row.name for row in services.page(world.agent, query, show).rows]


def test_a_healthy_agent(world: StatusWorld) -> None:
    said = world.ask("/status/summary")
    assert said["health"]["verdict"] == "healthy" and said["health"]["reasons"] == []
    assert said["health"]["synced_ago"] == 0.0 and said["node"] == NODE
    assert said["counts"] == {"services": 2, "slices": 3, "endpoints": 6}
    assert [(f["family"], f["service_ports"]) for f in said["families"]] == [("IPv4", 4), ("IPv6", 2)]


def test_before_the_lists_have_come() -> None:
    said = StatusWorld().ask("/status/summary")
    assert said["health"]["verdict"] == "unhealthy" and "have not come" in said["health"]["reasons"][0]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["web", "dns"]),
        ("WEB", ["web"]),
        ("kube-system/", ["dns"]),
        ("dns-tcp", ["dns"]),
        ("10.96.0.1", ["web"]),
        ("10.96.0.1:80", ["web"]),
        ("10.96.0.1:81", []),
        ("10.96.0.10:53/udp", ["dns"]),
        ("10.96.0.10:53/sctp", []),
        ("10.96.", ["web", "dns"]),
        ("10.96.0.10/31", ["dns"]),
        ("10.244.7.", ["web"]),  # an endpoint's
        ("10.244.9.54:5353", ["dns"]),
        ("10.244.9.54:5354", []),
        ("10.244.9.54/sctp", []),
        ("253.", []),  # no beginning of an IPv6 address
        ("fd00::1", ["web"]),
        ("[fd00::1]:80/tcp", ["web"]),
        ("fd00:0:", ["web"]),
        ("fd44::1", ["web"]),
        ("fd00::/16", ["web"]),
        ("30080", ["web"]),
        (":53", ["dns"]),
        ("53/tcp", ["dns"]),
        ("udp", ["dns"]),
        ("web udp", []),
        ("10.96.0.1 http", ["web"]),
        ("nowhere", []),
    ],
)
def test_search(world: StatusWorld, query: str, names: list[str]) -> None:
    assert sorted(found(world, query)) == sorted(names)


@pytest.mark.parametrize(
    "query", ["10.96.0.300", "999.1.", "10..", ":::", "[::", "fffff:", "1.2.3.4/99", "٣", "/", "\x00", "[]", "²"]
)
def test_what_only_looks_like_an_address_finds_nothing_and_breaks_nothing(world: StatusWorld, query: str) -> None:
    assert not set(found(world, query)) - {"web", "dns"}


@pytest.mark.parametrize("beginning", ["10.2", "10.", "172.16.9", "1.0", "7.00", "9.256", "255.255.2"])
def test_the_beginning_of_an_address_is_a_few_ranges(beginning: str) -> None:
    """What is compared with each of a hundred thousand addresses has to be little."""
    [word] = words(beginning)
    assert len(word.ranges) <= 3 and list(word.ranges) == sorted(word.ranges)
    *whole, _ = beginning.split(".")
    for number in range(256):
        address = bytes([*map(int, whole), number, *bytes(3 - len(whole))])
        fits = any(first <= address <= end for first, end in word.ranges)
        assert fits == (".".join(map(str, address)) + ".").startswith(beginning), address


def test_a_search_takes_a_word_at_a_time(world: StatusWorld) -> None:
    asked: list[str] = []

    def slices() -> list[Any]:
        asked.append("slices")
        return list(look.slices(world.agent.state))

    everything = look.services(world.agent.state)
    assert find(everything, words("udp web 10.96."), slices) == []
    assert find(everything, words("udp dns"), slices)
    assert not asked, "only addresses need endpoints, and only where something is left to be found"
    assert find(everything, words("udp 10.96."), slices) and asked == ["slices"]


def test_a_service_with_its_endpoints(world: StatusWorld) -> None:
    said = world.ask("/status/service", "namespace=kube-system&name=dns")
    assert said["policy"] == ["internalTrafficPolicy: Local"]
    udp, tcp = said["ways"]
    assert (udp["addresses"], tcp["addresses"]) == (["10.96.0.10:53/UDP"], ["10.96.0.10:53/TCP"])
    assert udp["outcome"] == "to 1 endpoint" and udp["total"] == 3
    assert [(e["endpoint"], e["used"]) for e in udp["endpoints"]] == [
        ("10.244.0.53:5353", "yes"),
        ("10.244.9.53:5353", "no"),
        ("10.244.9.54:5353", "no"),
    ]
    assert "node other" in udp["endpoints"][1]["why"] and udp["endpoints"][0]["why"] == ""


def test_addresses_that_lead_to_the_same_are_one_way(world: StatusWorld) -> None:
    ways = world.ask("/status/service", "namespace=default&name=web")["ways"]
    by_address = {address: way for way in ways for address in way["addresses"]}
    assert by_address["[fd00::1]:80/TCP"]["endpoints"][0]["endpoint"] == "[fd44::1]:8080"
    assert by_address["10.96.0.1:80/TCP"]["total"] == 2


def test_from_outside_and_inside() -> None:
    world = StatusWorld()
    both: dict[str, Any] = {"externalTrafficPolicy": "Local", "type": "LoadBalancer", "healthCheckNodePort": 31000}
    web = service("web", "10.96.0.1", ports=[{"name": "http", "port": 80, "nodePort": 30080}], **both)
    world.list(web, endpoint_slice("web", {"addresses": ["10.244.7.2"], "nodeName": "other"}))
    ways = {way["addresses"][0]: way for way in world.ask("/status/service", "namespace=default&name=web")["ways"]}
    outside = ways["NodePort 30080/TCP (IPv4)"]
    assert outside["outcome"] == "from outside: dropped; from pods and the node: to 1 endpoint"
    assert outside["endpoints"][0]["used"] == "inside"
    world.put(endpoint_slice("web", {"addresses": ["10.244.0.1"], "nodeName": NODE}, name="web-2"))
    ways = {way["addresses"][0]: way for way in world.ask("/status/service", "namespace=default&name=web")["ways"]}
    outside = ways["NodePort 30080/TCP (IPv4)"]
    assert outside["outcome"] == "from outside: to 1 endpoint of this node; from pods and the node: to 2 endpoints"
    assert [e["used"] for e in outside["endpoints"]] == ["yes", "inside"]
    row = world.ask("/status/services")["rows"][0]
    assert "externalTrafficPolicy: Local" in row["policy"] and "healthCheckNodePort: 31000" in row["policy"]


def test_services_that_lead_nowhere(world: StatusWorld) -> None:
    assert found(world, "", "no-endpoints") == []
    world.put(endpoint_slice("web", name="web-6", ports=[]) | {"addressType": "IPv6"})
    assert found(world, "", "no-endpoints") == ["web"]
    assert world.ask("/status/services", "q=web")["rows"][0]["endpoints"] == [0, 2]


def test_pages() -> None:
    world = StatusWorld()
    world.list(*many(120, 1))
    first = world.ask("/status/services")
    assert (first["total"], first["of"], first["pages"], len(first["rows"])) == (120, 120, 3, 50)
    names = [
        (row["namespace"], row["name"])
        for number in (1, 2, 3)
        for row in world.ask("/status/services", f"page={number}")["rows"]
    ]
    assert len(set(names)) == 120 and names == sorted(names)
    assert world.ask("/status/services", "page=999")["page"] == 3  # it shrank meanwhile
    assert world.ask("/status/services", "page=0")["page"] == 1


def test_what_is_left_out_and_for_how_long() -> None:
    world = StatusWorld()
    old = service("old", "10.96.0.1") | {
        "metadata": {"name": "old", "namespace": "a", "creationTimestamp": "2020-01-01T00:00:00Z"}
    }
    bad = service("bad", "10.96.0.2", ports=[{"port": 70000}])
    world.list(old, service("young", "10.96.0.1"), bad, endpoint_slice("old", "no address"))
    said = world.ask("/status/rejected")
    assert [(row["kind"], row["name"]) for row in said["rows"]] == [
        ("Service", "bad"),
        ("EndpointSlice", "old-1"),
        ("Service", "young"),
    ]
    assert "70000" in said["rows"][0]["reason"] and "a/old" in said["rows"][2]["reason"]
    assert world.ask("/status/summary")["rejected"] == 3
    assert world.ask("/status/summary")["health"]["verdict"] == "attention"
    assert found(world, "", "trouble") == ["young"]
    world.put(service("bad", "10.96.0.2"), endpoint_slice("old"))
    world.handle([Delete("Service", "default", "young")])
    assert world.ask("/status/rejected")["total"] == 0 == world.ask("/status/summary")["rejected"]


class FakeWatcher:
    """Of one resource, as proxy.watch.Watcher shows itself."""

    kind, mode, failures, relists = "EndpointSlice", "streaming", 2, 1

    def __init__(self, heard_at: float) -> None:
        self.heard_at = heard_at
        self.left_out: dict[tuple[str, str], str] = {}


def test_watches(world: StatusWorld) -> None:
    watcher = FakeWatcher(world.clock() - 30)
    world.view.watchers = [watcher]
    said = world.ask("/status/summary")
    assert said["watches"][0]["heard_ago"] == 30 and said["watches"][0]["failures"] == 2
    assert said["health"]["verdict"] == "healthy"

    watcher.left_out["default", "odd"] = "expected `int`, got `str`"
    assert world.ask("/status/rejected")["rows"] == [
        {"kind": "EndpointSlice", "namespace": "default", "name": "odd", "reason": "expected `int`, got `str`"}
    ]
    assert world.ask("/status/summary")["rejected"] == 1
    watcher.left_out.clear()

    world.clock.at += SILENT_SECONDS  # type: ignore[attr-defined]
    said = world.ask("/status/summary")["health"]
    assert said["verdict"] == "attention" and "nothing was heard of EndpointSlice objects" in said["reasons"][0]
    watcher.heard_at = 0.0
    assert world.ask("/status/summary")["watches"][0]["heard_ago"] is None


class Picky(FakeKernel):
    """Takes no service port of 10.96.0.66."""

    def commit(self, operations: Any) -> int:
        bad = [
            o
            for o in operations
            if getattr(o, "key", b"").startswith(bytes([10, 96, 0, 66])) and type(o).__name__ == "AddElement"
        ]
        if bad:
            raise TransactionError((Failure(bad[0], errno.EINVAL),))
        return super().commit(operations)


def test_service_ports_that_the_kernel_refuses() -> None:
    world = StatusWorld(Picky())
    world.list(WEB, *ENDPOINTS)
    world.put(service("odd", "10.96.0.66"), endpoint_slice("odd", "10.244.0.9"))
    said = world.ask("/status/summary")
    assert said["refused"] == 1 and said["refused_ports"][0]["service_port"] == "default/odd:http"
    assert said["refused_ports"][0]["address"] == "10.96.0.66:80/TCP" and said["health"]["verdict"] == "attention"
    assert found(world, "", "trouble") == ["odd"]
    assert world.ask("/status/service", "namespace=default&name=odd")["ways"][0]["outcome"] == "not programmed"


def test_repairs_are_counted_and_old_ones_are_no_reason_to_look(world: StatusWorld) -> None:
    layout = LAYOUTS[Family.IPV4]
    world.agent.tables.kernel.commit([FlushChain(layout.chain("services"))])
    world.handle([TablesTouched([Touched(Family.IPV4, is_rebuilt=True)])])
    said = world.ask("/status/summary")
    assert said["repairs"]["count"] == 1 and len(said["repairs"]["recent"]) == 1
    assert said["health"]["verdict"] == "attention"
    world.clock.at += LENGTH + STEP  # type: ignore[attr-defined]
    said = world.ask("/status/summary")
    assert said["repairs"]["count"] == 1 and said["health"]["verdict"] == "healthy"


class Kept:
    """In the place of a proxy.standby.Standby."""

    is_ready = False

    def renew(self, contents: object) -> None: ...

    def follow(self, operations: object) -> None: ...


def test_who_can_change_the_tables_is_said() -> None:
    kept = Kept()
    worlds = [StatusWorld(), StatusWorld(owned=True), StatusWorld(standby=kept)]
    for world in worlds:
        world.list(WEB, *ENDPOINTS)
    assert [world.ask("/status/summary")["protection"] for world in worlds] == ["watched", "owned", "standby-missing"]
    kept.is_ready = True
    assert worlds[-1].ask("/status/summary")["protection"] == "standby"


def test_deprecations(world: StatusWorld) -> None:
    world.findings = [
        Finding(check="ipvs-mode", severity="broken", title="IPVS", explanation="", remedy="leave it", evidence=())
    ]
    said = world.ask("/status/summary")
    assert said["deprecations"][0]["check"] == "ipvs-mode" and said["health"]["verdict"] == "attention"


def test_nothing_of_the_configuration_tells_where_credentials_are(world: StatusWorld) -> None:
    settings = world.ask("/status/summary")["settings"]
    assert "nftables.masqueradeBit" in settings and not [name for name in settings if "kubeconfig" in name]


# The last hour.


def test_the_ring_keeps_an_hour_and_no_more() -> None:
    clock, commits = Clock(1_000_000.0), Histogram(COMMIT_BOUNDS)
    ring = Ring(commits, clock)
    for _ in range(3 * LENGTH):
        clock.at += 1
        ring.add(changes=2)
        commits.observe(0.001)
    slots = ring.read().slots
    assert len(slots) == LENGTH // STEP and slots[-1].changes == 2
    assert slots[-2].changes == 2 * STEP and slots[-2].commits == STEP
    assert slots[-2].mean_ms == pytest.approx(1.0) and slots[-2].slowest_ms == pytest.approx(1.6)
    assert len(ring._slots) <= LENGTH // STEP  # also when nobody reads
    clock.at += LENGTH
    assert ring.read().slots == ()


def test_the_slowest_is_the_bound_above_it() -> None:
    clock, commits = Clock(), Histogram(COMMIT_BOUNDS)
    ring = Ring(commits, clock)
    for seconds in (0.0001, 0.003, 1000.0):
        commits.observe(seconds)
        ring.add(changes=1)
    (slot,) = ring.read().slots
    assert slot.slowest_ms == pytest.approx(COMMIT_BOUNDS[-1] * 1e3)
    assert slot.commits == 3


def test_everything_programmed_anew_is_no_flood_of_changes(world: StatusWorld) -> None:
    (slot,) = world.view.summary().history.slots
    assert (slot.changes, slot.full) == (0, 1)
    world.put(endpoint_slice("web", "10.244.0.9"))
    (slot,) = world.view.summary().history.slots
    assert slot.changes == 4  # all of that Service are compiled, and nothing else


def test_a_list_that_another_thread_changes_is_read_again() -> None:
    tries = 0

    def read() -> list[int]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise RuntimeError("dictionary changed size during iteration")
        return [tries]

    assert look._whole(read) == [3]


def test_looking_while_the_agent_works() -> None:
    """Nothing that another thread changes meanwhile breaks an answer."""
    world = StatusWorld()
    objects = many(300, 2)
    world.list(*objects)
    end = threading.Event()
    errors: list[BaseException] = []

    def look() -> None:
        try:
            while not end.is_set():
                for path, query in (
                    ("summary", ""),
                    ("services", "q=10.96"),
                    ("rejected", ""),
                    ("services", "show=trouble"),
                ):
                    world.ask(f"/status/{path}", query)
                world.ask("/status/service", "namespace=team-0&name=service-00000")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    for i in range(60):
        world.put(*many(300 + i, 2)[-4:], service(f"bad-{i}", "10.96.200.1", ports=[{"port": 99999}]))
        world.put(service("service-00000", "10.96.0.0", namespace="team-0"), endpoint_slice(f"x{i}", "10.1.1.1"))
        world.handle([Delete("EndpointSlice", "default", f"x{i - 1}-1"), Delete("Service", "default", f"bad-{i - 5}")])
    end.set()
    thread.join()
    assert not errors, errors
