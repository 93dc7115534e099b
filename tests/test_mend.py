"""What others do to our tables is undone: only what they touched is looked at."""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy.committed import Committed
from proxy.events import Event, TablesTouched
from proxy.patience import MEND_CALM, MEND_PAUSE, MENDS_AT_ONCE
from rules import netlink
from rules.changes import Changes, Touched, merge
from rules.dump import TableState
from rules.errors import Failure, TransactionError
from rules.fake import FakeKernel
from rules.kernel import Kernel
from rules.kernel_watch import KernelWatch, Lost
from rules.layout import LAYOUTS, Options
from rules.mend import mend
from rules.objects import Family
from rules.tables import create
from rules.transaction import AddElement, DeleteElement, DeleteTable, FlushChain
from tests.histories import BATCHES, Cluster, remember
from tests.meddling import Meddling, flush_ruleset, take_elements
from tests.netns import Namespace, in_new_namespace
from tests.objects import endpoint_slice, service
from tests.test_adopt import check, damaged
from tests.test_agent import WEB, World, put
from tests.test_histories import empty

V4 = LAYOUTS[Family.IPV4]
EXAMPLES: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=200, **EXAMPLES)
@given(BATCHES)
def test_every_element_can_be_told_from_what_is_known(batches: list[list[Event]]) -> None:
    with empty(FakeKernel) as (kernel, agent):
        cluster: Cluster = {}
        for batch in batches:
            remember(cluster, *batch)
            agent.handle(batch)
        for family, layout in LAYOUTS.items():
            table, programmed = kernel.dump(layout.table), agent.tables.programmed[family]
            for name, set_ in table.sets.items():
                for key, (data, comment) in set_.elements.items():
                    element = programmed.element(name, key)
                    assert element is not None, (name, key)
                    assert (element.set.name, element.key) == (name, key)
                    assert ((element.data or element.end), element.comment) == (data, comment)
            keys = {(name, key) for name, set_ in table.sets.items() for key in set_.elements}
            assert sorted((element.set.name, element.key) for element in programmed.elements()) == sorted(keys)
            for name in table.sets:
                for other, key in keys:
                    if len(key) == _key_size(programmed, name) and (name, key) not in keys:
                        assert programmed.element(name, key) is None, (name, other, key)


def _key_size(programmed: Any, name: str) -> int:
    return next(set_.key_size for set_ in programmed.sets() if set_.name == name)


def changes(before: TableState, after: TableState, family: Family) -> Touched:
    """What the kernel would tell of it."""
    touched = Touched(family, who="nft (pid 1)")
    for name, set_ in after.sets.items():
        old = before.sets[name].elements
        for key in old.keys() | set_.elements.keys():
            if old.get(key) != set_.elements.get(key):
                touched.elements[name, key] = set_.elements.get(key)
    touched.chains = {name for name, chain in after.chains.items() if chain.rules != before.chains[name].rules}
    return touched


def copy(table: TableState | None) -> TableState:
    assert table is not None
    sets = {n: type(s)(s.type, s.data_type, s.flags, dict(s.elements)) for n, s in table.sets.items()}
    return TableState(sets, {n: type(c)(c.hook, list(c.rules)) for n, c in table.chains.items()})


@settings(max_examples=40, **EXAMPLES)
@given(BATCHES, st.integers(0, 2**32), st.integers(1, 6))
def test_damage_is_undone(batches: list[list[Event]], seed: int, count: int) -> None:
    world = World().start()
    for batch in batches:
        world.handle(*batch)
    before = {family: copy(world.kernel.dump(layout.table)) for family, layout in LAYOUTS.items()}
    damaged(world.kernel, random.Random(seed), count)
    touched = [changes(before[f], copy(world.kernel.dump(LAYOUTS[f].table)), f) for f in Family]
    world.agent.handle([TablesTouched(tuple(touched))])
    check(world.kernel, world.cluster)
    for family, layout in LAYOUTS.items():
        after = copy(world.kernel.dump(layout.table))
        assert rules_in_use(after) == rules_in_use(before[family])


def rules_in_use(table: TableState) -> dict[str, Any]:
    """Without those of round robin's chains that no service port has any more."""
    maps = [set_ for name, set_ in table.sets.items() if name.endswith("round-robin")]
    led = {chain.decode() for set_ in maps for chain, _ in set_.elements.values()}
    return {name: chain.rules for name, chain in table.chains.items() if "turn-" not in name or name in led}


def test_a_table_that_is_gone_comes_back() -> None:
    world = World().start(*WEB)
    world.kernel.commit([DeleteTable(V4.table)])
    with capture_logs() as logs:
        world.handle(TablesTouched((Touched(Family.IPV4, is_rebuilt=True, who="nft (pid 7)"),)))
    world.check()
    assert [(log["event"], log["by"]) for log in logs] == [("tables_mended", "nft (pid 7)")]
    assert world.agent.repairs == 1


def test_lost_messages_lead_to_a_look_at_everything() -> None:
    world = World().start(*WEB)
    world.kernel.commit([FlushChain(V4.chain("services"))])
    transactions = world.kernel.transactions
    world.handle(TablesTouched((), "messages were lost"))
    world.check()
    world.handle(TablesTouched((), "messages were lost"))
    assert world.kernel.transactions == transactions + 1
    assert world.agent.repairs == 1


def test_what_is_as_it_should_be_again_costs_nothing() -> None:
    world = World().start(*WEB)
    transactions = world.kernel.transactions
    key = next(iter(world.kernel.dump(V4.table).sets["cluster-ips"].elements))  # type: ignore[union-attr]
    world.handle(TablesTouched((Touched(Family.IPV4, {("cluster-ips", key): (b"", "")}),)))
    assert world.kernel.transactions == transactions and not world.agent.repairs


def test_what_changed_with_the_cluster_meanwhile_is_not_brought_back() -> None:
    world = World().start(*WEB)
    table = world.kernel.dump(V4.table)
    assert table is not None
    key = next(iter(table.sets["cluster-ips"].elements))
    world.kernel.commit([DeleteElement(V4.cluster_ips, key)])
    touched = TablesTouched((Touched(Family.IPV4, {("cluster-ips", key): None}),))
    world.handle(touched, *put(service("web", "10.96.0.77", "fd00::1")))
    world.check()


def test_who_does_not_give_in_is_answered_with_pauses() -> None:
    world = World().start(*WEB)
    key = next(iter(world.kernel.dump(V4.table).sets["cluster-ips"].elements))  # type: ignore[union-attr]
    for second in range(100):
        world.clock.now = second / 10
        world.kernel.commit([DeleteElement(V4.cluster_ips, key)]) if _there(world, key) else None
        world.handle(TablesTouched((Touched(Family.IPV4, {("cluster-ips", key): None}),)))
    assert MENDS_AT_ONCE <= world.agent.repairs <= MENDS_AT_ONCE + 10 / MEND_PAUSE
    for _ in range(2):
        if _there(world, key):
            world.kernel.commit([DeleteElement(V4.cluster_ips, key)])
        world.handle(TablesTouched((Touched(Family.IPV4, {("cluster-ips", key): None}),)))
    assert 0 < (world.agent._patience(False) or 0) <= MEND_PAUSE
    world.clock.now += MEND_PAUSE
    world.handle()
    world.check()
    world.clock.now += 2 * MEND_CALM
    repairs = world.agent.repairs
    for _ in range(3):
        world.kernel.commit([DeleteElement(V4.cluster_ips, key)])
        world.handle(TablesTouched((Touched(Family.IPV4, {("cluster-ips", key): None}),)))
        world.check()
    assert world.agent.repairs == repairs + 3


def _there(world: World, key: bytes) -> bool:
    return key in world.kernel.dump(V4.table).sets["cluster-ips"].elements  # type: ignore[union-attr]


def test_several_transactions_are_one() -> None:
    one = Touched(Family.IPV4, {("a", b"k"): None}, {"x"}, who="nft (pid 1)")
    two = Touched(Family.IPV4, {("a", b"k"): (b"1", "")}, {"y"}, who="nft (pid 2)")
    other = Touched(Family.IPV6, is_rebuilt=True, who="nft (pid 1)")
    assert list(merge([one, other, two])) == [
        Touched(Family.IPV4, {("a", b"k"): (b"1", "")}, {"x", "y"}, who="nft (pid 1), nft (pid 2)"),
        Touched(Family.IPV6, is_rebuilt=True, who="nft (pid 1)"),
    ]


def notice(kind: int, port: int, body: bytes) -> bytes:
    """A notification of what the socket of this port id has done."""
    made = netlink.message(kind, 0, 0, Family.IPV4, body)
    return made[:12] + port.to_bytes(4, sys.byteorder) + made[16:]


@pytest.mark.parametrize(("ended_by", "who"), [(5, "nft (pid 77)"), (6, "")])
def test_nobody_is_blamed_for_what_others_did_where_messages_were_lost(ended_by: int, who: str) -> None:
    """The next transaction may be the standby's, whose socket is one of the agent's own."""
    changes = Changes(own=7)
    rule = netlink.text(1, V4.table.name) + netlink.text(2, "services")
    assert changes.feed(notice(netlink.DELRULE, 5, rule)) == []
    by_nft = netlink.attribute(2, (77).to_bytes(4)) + netlink.text(3, "nft")
    assert changes.feed(notice(netlink.NEWGEN, ended_by, by_nft)) == [
        Touched(Family.IPV4, chains={"services"}, who=who)
    ]


def test_a_set_or_chain_that_nobody_knows_is_looked_at() -> None:
    world = World().start(*WEB)
    programmed = world.agent.tables.programmed[Family.IPV4]
    assert mend(programmed, Touched(Family.IPV4, {("theirs", b""): None}), Options(), ()) is None
    assert mend(programmed, Touched(Family.IPV4, chains={"theirs"}), Options(), ()) is None


# The kernel's own words.


@pytest.fixture
def place() -> Iterator[tuple[Namespace, KernelWatch]]:
    def enter() -> tuple[Namespace, KernelWatch]:
        namespace = Namespace.__new__(Namespace)
        namespace.descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        namespace.kernel = Kernel()
        return namespace, KernelWatch(namespace.kernel.port)

    namespace, watch = in_new_namespace(enter)
    for layout in LAYOUTS.values():
        namespace.kernel.commit(create(layout, Options(), ()))
    yield namespace, watch
    watch.close()
    namespace.close()


@pytest.mark.root
def test_the_kernel_tells_what_others_do(place: tuple[Namespace, KernelWatch]) -> None:
    namespace, watch = place
    assert watch.read(0.0) == []  # what we did is not told
    namespace.nft("add", "element", "ip", "kube-proxy-nft", "cluster-ips", "{ 10.96.0.1 }")
    [touched] = watch.read(10.0) or []
    assert (touched.family, touched.elements) == (Family.IPV4, {("cluster-ips", bytes((10, 96, 0, 1))): (b"", "")})
    assert touched.who.startswith("nft (pid ")
    namespace.nft("flush chain ip6 kube-proxy-nft services; delete element ip kube-proxy-nft cluster-ips { 10.96.0.1 }")
    first, second = sorted(watch.read(10.0) or [], key=lambda t: t.family)
    assert first.elements == {("cluster-ips", bytes((10, 96, 0, 1))): None} and not first.chains
    assert (second.family, second.chains, second.is_rebuilt) == (Family.IPV6, {"services"}, False)
    namespace.nft("add table ip other; add chain ip other x; add rule ip other x accept")
    namespace.nft("flush", "ruleset")
    assert {t.family for t in watch.read(10.0) or [] if t.is_rebuilt} == set(Family)


@pytest.mark.root
def test_ranges_maps_and_comments_are_told_as_they_are_read(place: tuple[Namespace, KernelWatch]) -> None:
    namespace, watch = place
    elements = {
        "allowed-sources": "{ 10.96.0.1 . tcp . 80 . 192.0.2.0-192.0.2.255 }",
        "cluster-ip-ports": '{ 10.96.0.1 . tcp . 80 comment "a/b:c" : 4b50:0001 }',
        "endpoints": "{ 10.96.0.1 . tcp . 80 . 0 : 10.0.0.1 . 8080 }",
        "affinity": "{ 10.96.0.1 . tcp . 80 : 4b50:0001 }",
    }
    for name, text in elements.items():
        namespace.nft("add", "element", "ip", "kube-proxy-nft", name, text)
        told = {key: element for t in watch.read(10.0) or [] for key, element in t.elements.items()}
        table = namespace.kernel.dump(V4.table)
        assert table is not None
        assert told == {(name, key): element for key, element in table.sets[name].elements.items()}


@pytest.mark.root
def test_lost_messages_are_noticed_and_the_next_ones_heard() -> None:
    def enter() -> tuple[Kernel, KernelWatch]:
        kernel = Kernel()
        return kernel, KernelWatch(0, receive_buffer=1)

    kernel, watch = in_new_namespace(enter)
    for layout in LAYOUTS.values():
        kernel.commit(create(layout, Options(), ()))
    with pytest.raises(Lost):
        for _ in range(1000):
            assert watch.read(1.0) is not None
    watch.wake()
    assert watch.read(10.0) is None
    watch.close()
    kernel.close()


@pytest.mark.root
def test_what_we_do_is_no_flood_of_messages() -> None:
    """However much it is: the watch may begin before the first of our transactions."""

    def enter() -> tuple[Kernel, Kernel, KernelWatch]:
        kernel, other = Kernel(), Kernel()
        return kernel, other, KernelWatch(kernel.port, receive_buffer=1)

    kernel, other, watch = in_new_namespace(enter)
    for layout in LAYOUTS.values():
        kernel.commit(create(layout, Options(), ()))
    assert watch.read(0.1) == []
    other.commit([AddElement(V4.cluster_ips, bytes((10, 96, 0, 1)))])
    [touched] = watch.read(10.0) or []
    assert touched.elements.keys() == {("cluster-ips", bytes((10, 96, 0, 1)))} and str(os.getpid()) in touched.who
    for each in (watch, kernel, other):
        each.close()


def test_reading_ends_when_it_is_woken() -> None:
    watch = KernelWatch(0)
    ended = threading.Event()
    threading.Thread(target=lambda: (watch.read(), ended.set()), daemon=True).start()
    watch.wake()
    assert ended.wait(10)
    watch.close()


def test_who_was_given_the_udp_flows_sees_them_change_after_a_mend() -> None:
    seen: list[Committed] = []
    world = World(followers=[seen.append])
    dns = service("dns", "10.96.0.53", ports=[{"name": "", "port": 53, "protocol": "UDP"}])
    world.start(*put(dns, _udp_slice("10.244.0.1")))
    given = seen[0].flows
    [key] = given
    world.kernel.commit([DeleteTable(V4.table)])
    world.handle(TablesTouched((), "messages were lost"))
    world.handle(*put(_udp_slice("10.244.0.2")))
    assert seen[-1].flows is given
    assert {endpoint[:4] for endpoint in given[key].serving} == {bytes((10, 244, 0, 2))}
    assert seen[-1].udp and {endpoint[:4] for endpoint in seen[-1].udp[0].gone} == {bytes((10, 244, 0, 1))}


def test_udp_flows_are_looked_at_after_a_mend() -> None:
    """Those that came while rules were missing were let through as they were."""
    told: list[Committed] = []
    world = World(followers=[told.append])
    world.start(*WEB, *put(service("dns", "10.96.0.9", ports=[{"name": "", "port": 53, "protocol": "UDP"}])))
    world.handle(*put(_udp_slice("10.244.0.9")))
    told.clear()
    world.handle(TablesTouched((Touched(Family.IPV4, chains={"services"}),)))
    [key] = [change.key for done in told for change in done.udp if change.usable]
    assert key[:4] == bytes([10, 96, 0, 9])
    assert not any(done.everything for done in told)
    world.kernel.commit([DeleteTable(V4.table)])
    told.clear()
    world.handle(TablesTouched((Touched(Family.IPV4, is_rebuilt=True),)))
    assert [change.key for done in told for change in done.udp if change.usable] == [key]
    assert not any(done.everything for done in told)  # what is there is what was there
    told.clear()
    world.handle(TablesTouched((Touched(Family.IPV4, elements={("cluster-ips", bytes([10, 96, 0, 9])): (b"", "")}),)))
    assert not any(done.udp or done.everything for done in told)  # nothing was wrong


@pytest.mark.parametrize(("meddle", "all_over"), [(take_elements, True), (flush_ruleset, False)])
def test_who_follows_looks_at_everything_after_a_change_that_found_the_table_others_work(
    meddle: Callable[[FakeKernel], None], all_over: bool
) -> None:
    """It may have led flows anywhere. One that was gone led them nowhere, of which the mend tells."""
    told: list[Committed] = []
    world = World(followers=[told.append])
    world.start(*WEB, *put(service("dns", "10.96.0.9"), endpoint_slice("dns", "10.244.0.8", "10.244.0.9")))
    told.clear()
    world.kernel.commit = Meddling(world.kernel, meddle, 1)
    world.handle(*put(endpoint_slice("web", "10.244.0.8")))
    del world.kernel.commit
    [done] = told
    assert done.everything is all_over
    assert {key[:4] for key in done.ports if len(key) < 16} == {
        bytes((10, 96, 0, host)) for host in ((1, 9) if all_over else (1,))
    }


def _udp_slice(address: str) -> dict[str, Any]:
    slice_ = endpoint_slice("dns", address)
    return slice_ | {"ports": [{"name": "", "port": 53, "protocol": "UDP"}]}


def test_a_range_by_hand_that_is_no_network_has_words() -> None:
    first, last = bytes((192, 0, 2, 1)), bytes((192, 0, 2, 9))
    key = bytes((10, 96, 0, 1)) + bytes((6, 0, 0, 0)) + bytes((0, 80, 0, 0))
    failure = Failure(DeleteElement(V4.allowed_sources, key + first, key + last), errno.ENOENT)
    assert "192.0.2.1-192.0.2.9" in str(TransactionError((failure,)))
