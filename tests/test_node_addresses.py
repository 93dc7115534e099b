"""Real addresses, in a network namespace of each test's own."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address

import pytest
from structlog.testing import capture_logs

from proxy import node_addresses
from proxy.errors import SourceError
from proxy.events import Event, Failed, Inbox, LocalAddresses
from proxy.node_addresses import AddressSource
from tests.netns import in_new_namespace

pytestmark = pytest.mark.root

SECONDS = 20.0


def ip(*commands: str) -> None:
    """Run ip commands in this thread's namespace."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


def listed() -> set[str]:
    """What ip says."""
    done = subprocess.run(["ip", "-json", "addr"], capture_output=True, text=True, check=True)
    return {info["local"] for link in json.loads(done.stdout) for info in link["addr_info"]}


def texts(event: Event) -> set[str]:
    assert isinstance(event, LocalAddresses), event
    return {str(ip_address(packed)) for packed in event.addresses}


def until(inbox: Inbox, wanted: Callable[[set[str]], bool]) -> set[str]:
    """Take events until one is as wanted."""
    deadline = time.monotonic() + SECONDS
    last: set[str] = set()
    while (left := deadline - time.monotonic()) > 0:
        for event in inbox.take(left):
            last = texts(event)
        if wanted(last):
            return last
    raise AssertionError(f"in the end there were {sorted(last)[:20]}")


def with_source(body: Callable[[Inbox, AddressSource], None], inbox: Inbox | None = None) -> None:
    """In a new namespace with two links, a0 and b0, whose IPv6 makes no addresses of its own."""

    def action() -> None:
        ip("link set lo up", "link add a0 type veth peer name a1", "link add b0 type veth peer name b1")
        for name in ("a0", "a1", "b0", "b1"):
            subprocess.run(["sysctl", "-qw", f"net.ipv6.conf.{name}.addr_gen_mode=1"], check=True)
        ip(*(f"link set {name} up" for name in ("a0", "a1", "b0", "b1")))
        ip("addr add 192.0.2.1/24 dev a0")
        box = inbox or Inbox()
        source = AddressSource(box)
        source.start()
        try:
            body(box, source)
        finally:
            source.stop()

    in_new_namespace(action)


def test_all_addresses_are_there_before_start_returns() -> None:
    def body(inbox: Inbox, _source: AddressSource) -> None:
        (event,) = inbox.take(0)
        assert texts(event) == {"127.0.0.1", "::1", "192.0.2.1"} == listed()

    with_source(body)


def test_addresses_come_and_go() -> None:
    def body(inbox: Inbox, _source: AddressSource) -> None:
        first = texts(inbox.take(0)[0])
        # Without nodad it is tentative at first.
        for address in ("198.51.100.7/32", "2001:db8::7/64"):
            plain = address.partition("/")[0]
            ip(f"addr add {address} dev b0")
            assert until(inbox, lambda now, plain=plain: plain in now) == first | {plain}  # type: ignore[misc]
            ip(f"addr del {address} dev b0")
            assert until(inbox, lambda now, plain=plain: plain not in now) == first  # type: ignore[misc]

    with_source(body)


def test_an_address_is_there_until_the_last_interface_loses_it() -> None:
    def body(inbox: Inbox, _source: AddressSource) -> None:
        first = texts(inbox.take(0)[0])
        both = {"203.0.113.5", "2001:db8::5"}
        for device in ("b0", "a0"):
            ip(*(f"addr add {address} dev {device} nodad" for address in ("203.0.113.5/32", "2001:db8::5/128")))
            if device == "b0":  # which keeps them: the kernel may be late to tell of a new IPv6 address
                until(inbox, lambda now: now == first | both)
        # Each of these changes nothing; the one after it does, and is the next that is told.
        for command in ("del 203.0.113.5/32", "del 2001:db8::5/128", "add 192.0.2.9/32"):
            ip(f"addr {command} dev a0")
        assert texts(inbox.take(SECONDS)[0]) == first | both | {"192.0.2.9"}
        ip("addr del 203.0.113.5/32 dev b0", "addr del 2001:db8::5/128 dev b0")
        until(inbox, lambda now: now == first | {"192.0.2.9"})

    with_source(body)


def test_one_address_twice_on_an_interface() -> None:
    def body(inbox: Inbox, _source: AddressSource) -> None:
        first = texts(inbox.take(0)[0])
        ip("addr add 203.0.113.1/32 dev a0", "addr add 203.0.113.1/24 dev a0", "addr del 203.0.113.1/32 dev a0")
        ip("addr add 203.0.113.2 peer 203.0.113.102 dev a0", "addr add 203.0.113.2 peer 203.0.113.103 dev a0")
        ip("addr del 203.0.113.2 peer 203.0.113.102 dev a0", "addr add 203.0.113.3/32 dev a0")
        now = until(inbox, lambda now: "203.0.113.3" in now)
        assert now == first | {"203.0.113.1", "203.0.113.2", "203.0.113.3"} == listed()

    with_source(body)


def test_the_other_end_of_a_link_is_not_ours() -> None:
    def body(inbox: Inbox, _source: AddressSource) -> None:
        first = texts(inbox.take(0)[0])
        ip(
            "addr add 2001:db8::1 peer 2001:db8::2 dev a0 nodad",
            "addr change 2001:db8::1 peer 2001:db8::3 dev a0 nodad",
        )
        until(inbox, lambda now: now == first | {"2001:db8::1"})
        ip("addr del 2001:db8::1 peer 2001:db8::3 dev a0")
        until(inbox, lambda now: now == first)

    with_source(body)


@pytest.mark.parametrize("how", ["link del a0", "link set a0 netns other"])
def test_an_interface_goes_with_its_addresses(how: str) -> None:
    def body(inbox: Inbox, _source: AddressSource) -> None:
        first = texts(inbox.take(0)[0])
        ip("addr add 2001:db8::1/64 dev a0 nodad")
        until(inbox, lambda now: "2001:db8::1" in now)
        command = how.split()
        if command[-1] == "other":
            with subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
                assert other.stdin and other.stdout
                other.stdin.write(b"here\n")
                other.stdin.flush()
                other.stdout.readline()  # it runs in its namespace now
                ip(" ".join([*command[:-1], str(other.pid)]))
                other.stdin.close()
        else:
            ip(how)
        until(inbox, lambda now: now == first - {"192.0.2.1"})

    with_source(body)


def test_thousands_at_once() -> None:
    many = [f"198.18.{i >> 8}.{i & 255}" for i in range(2000)]

    def body(inbox: Inbox, _source: AddressSource) -> None:
        first = texts(inbox.take(0)[0])
        ip(*(f"addr add {address}/32 dev a0" for address in many))
        until(inbox, lambda now: now == first.union(many))
        # A second source reads them all in one dump.
        other, source = Inbox(), AddressSource(Inbox())
        source._inbox = other
        source.start()
        source.stop()
        assert texts(other.take(0)[0]) == first.union(many)
        ip("link set a0 down", "link del a0")
        until(inbox, lambda now: now == first - {"192.0.2.1"})

    with_source(body)


class Slow(Inbox):
    """Holds the thread that puts its second event until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.puts = 0
        self.is_held, self.go_on = threading.Event(), threading.Event()

    def put(self, *events: Event) -> None:
        self.puts += 1
        if self.puts == 2:
            self.is_held.set()
            assert self.go_on.wait(SECONDS)
        super().put(*events)


def overrun(inbox: Slow) -> None:
    """More changes than the buffer holds, while the thread is held."""
    ip("addr add 198.18.255.1/32 dev a0")
    assert inbox.is_held.wait(SECONDS)
    ip(*(f"addr add 198.18.0.{i}/32 dev a0" for i in range(200)))
    ip(*(f"addr del 198.18.0.{i}/32 dev a0" for i in range(100)), "addr add 2001:db8::1/64 dev a0 nodad")
    inbox.go_on.set()


def test_after_an_overrun_all_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_addresses, "RECEIVE_BUFFER", 1)  # the kernel's least

    def body(inbox: Inbox, _source: AddressSource) -> None:
        assert isinstance(inbox, Slow)
        with capture_logs() as logs:
            overrun(inbox)
            now = listed()
            until(inbox, lambda found: found == now)
        assert len(now) == 105
        assert "address_messages_missed" in {log["event"] for log in logs}
        # It hears of changes as before.
        ip("addr del 198.18.0.150/32 dev a0")
        until(inbox, lambda found: found == now - {"198.18.0.150"})

    with_source(body, Slow())


def test_what_cannot_be_read_now_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_addresses, "RECEIVE_BUFFER", 1)
    monkeypatch.setattr(node_addresses, "RETRY_MS", 10)
    failures = iter([OSError(errno.EMFILE, "Too many open files")] * 3)

    def body(inbox: Inbox, _source: AddressSource) -> None:
        assert isinstance(inbox, Slow)
        real = node_addresses.read_all

        def read_all() -> node_addresses.Entries:
            if error := next(failures, None):
                raise error
            return real()

        monkeypatch.setattr(node_addresses, "read_all", read_all)
        with capture_logs() as logs:
            overrun(inbox)
            now = listed()
            until(inbox, lambda found: found == now)
        assert [log["cause"] for log in logs if log["event"] == "addresses_unreadable"] == ["Too many open files"] * 3

    with_source(body, Slow())


def test_a_bug_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(inbox: Inbox, _source: AddressSource) -> None:
        inbox.take(0)

        def apply(*_: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(node_addresses, "apply", apply)
        ip("addr add 198.18.0.1/32 dev a0")
        (event,) = inbox.take(SECONDS)
        assert isinstance(event, Failed) and str(event.error) == "a bug"

    with capture_logs() as logs:
        with_source(body)
    assert [log["event"] for log in logs] == ["addresses_stopped"]


def test_a_dump_that_was_disturbed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing in one is taken from another."""
    dumps = iter([({b"a": b"1"}, False), ({b"b": b"2"}, False), ({b"a": b"1", b"c": b"3"}, True), ({b"d": b"4"}, True)])

    def read_once(_socket: socket.socket, _sequence: int, entries: node_addresses.Entries) -> bool:
        found, undisturbed = next(dumps)
        entries.update(found)
        return undisturbed

    monkeypatch.setattr(node_addresses, "_read_once", read_once)
    assert node_addresses.read_all() == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_without_netlink_there_is_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(node_addresses, "_rtnetlink", refuse)
    with pytest.raises(SourceError, match="the node's IP addresses: cannot be read: Address family not supported"):
        AddressSource(Inbox()).start()


def test_stop_does_not_wait_for_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_addresses, "PAUSE_PER_ADDRESS", 1000.0)

    def body(inbox: Inbox, source: AddressSource) -> None:
        ip("addr add 198.18.0.1/32 dev a0")
        until(inbox, lambda now: "198.18.0.1" in now)
        ip("addr add 198.18.0.2/32 dev a0")  # is not looked at before the pause is over
        source.stop()
        assert inbox.take(0) == []

    with_source(body)


def test_stop_leaves_nothing_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    source = AddressSource(Inbox())
    source.stop()
    for _ in range(3):
        source.start()
        assert "addresses" in {thread.name for thread in threading.enumerate()}
        source.stop()
        source.stop()
    assert "addresses" not in {thread.name for thread in threading.enumerate()}
    assert len(os.listdir("/proc/self/fd")) == before
