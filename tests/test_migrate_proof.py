"""The proof: our tables in a throw-away network namespace, accepted, refused, or not tried; this one never changes."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from bench import cluster
from proxy.events import Put
from proxy.migrate import proof, sandbox
from proxy.migrate.proof import missing_features, prove
from proxy.migrate.sandbox import NotAllowed, Sandbox
from proxy.state import State
from rules.diff import scratch
from rules.errors import Failure, TransactionError
from rules.layout import LAYOUTS, Options
from rules.objects import Chain, Family, Table
from rules.rehearsal import IMPOSSIBLE
from rules.tables import create
from rules.transaction import AddChain, AddElement, AddRule, Operation

REPO = Path(__file__).parents[1]


def operations(services: int = 5, endpoints: int = 3) -> list[Operation]:
    state = State("node-1")
    for service in cluster.services(services):
        state.apply(Put(service))
    for slice_ in cluster.slices(services, endpoints):
        state.apply(Put(slice_))
    ports = [port for port in state.everything().values() if port]
    found: list[Operation] = []
    for family in Family:
        found += create(LAYOUTS[family], Options(), ())
        found += scratch(family, [port for port in ports if port.family is family], frozenset()).operations
    return found


def own_tables() -> str:
    return subprocess.run(["nft", "list", "tables"], capture_output=True, text=True).stdout


@pytest.mark.root
def test_accepted() -> None:
    made = operations()
    before = own_tables()
    found = prove(made)
    assert (found.status, found.detail) == ("accepted", "a network namespace")
    assert found.elements == sum(isinstance(one, AddElement) for one in made) > 15
    assert found.bytes > 1000 and found.milliseconds > 0 and found.kernel == os.uname().release
    assert own_tables() == before


@pytest.mark.root
def test_as_an_ordinary_user() -> None:
    """Through a user namespace; a small send buffer takes several transactions."""
    code = (
        "from tests.test_migrate_proof import *; p = prove(operations(800, 10)); "
        "print(p.status, p.elements, p.detail, missing_features())"
    )
    limit = Path("/proc/sys/net/core/wmem_max")
    before = limit.read_text()
    limit.write_text("212992")  # as most systems have it
    try:
        done = subprocess.run(
            ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", sys.executable, "-P", "-c", code],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(REPO), "PATH": os.environ["PATH"]},
            cwd="/",
        )
    finally:
        limit.write_text(before)
    said = re.fullmatch(r"accepted (\d+) a user and network namespace, \d+ transactions \(\(\), \(\)\)\n", done.stdout)
    assert said, done.stdout + done.stderr
    assert int(said[1]) > 800 * 10


@pytest.mark.root
def test_refused_names_the_object() -> None:
    made = operations()
    broken = Chain(Table(Family.IPV4, "nowhere"), "lost")
    found = prove([*made, AddChain(broken)])
    assert found.status == "refused"
    assert "chain ip nowhere lost" in found.detail and "No such file" in found.detail


@pytest.mark.root
def test_refused_names_the_element() -> None:
    made = operations()
    element = next(one for one in reversed(made) if isinstance(one, AddElement) and one.set.data)
    found = prove([*made, AddElement(element.set, element.key, b"\xff" + element.data[1:], comment="default/broken")])
    assert found.status == "refused"
    assert "default/broken" in found.detail


@pytest.mark.root
def test_an_element_that_does_not_arrive_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "count", lambda self, set_, expected: expected - 1)
    found = prove(operations())
    assert found.status == "refused" and "elements" in found.detail


def test_nothing_to_load() -> None:
    assert prove([]).status == "not-tried"


@pytest.mark.root
def test_features_are_tried_there() -> None:
    before = own_tables()
    assert missing_features() == ((), ())
    assert own_tables() == before


class Lacking:
    """A kernel without numgen."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def commit(self, made: list[Operation]) -> int:
        rules = [one for one in made if isinstance(one, AddRule)]
        lost: list[Operation] = [
            one for one in rules if "numgen" in [expression.NAME for expression in one.rule.expressions]
        ]
        raise TransactionError(tuple(Failure(one, errno.ENOENT) for one in [*lost, IMPOSSIBLE]))


def test_a_missing_feature() -> None:
    assert missing_features(Lacking) == (("CONFIG_NFT_NUMGEN",), ())  # type: ignore[arg-type]


def no_namespace(reason: str) -> Sandbox:
    raise NotAllowed(reason)


def test_where_no_namespace_is_to_be_had() -> None:
    found = prove(operations(), lambda: no_namespace("user.max_user_namespaces is 0"))
    assert (found.status, found.detail) == ("not-tried", "user.max_user_namespaces is 0")
    missing, [unread] = missing_features(lambda: no_namespace("because"))
    assert not missing and unread.cause == "because" and unread.remedy


@pytest.mark.root
def test_root_without_the_capability_takes_a_user_namespace() -> None:
    """Which has made a network namespace, and may not program it."""
    code = "from tests.test_migrate_proof import *; p = prove(operations(1, 1)); print(p.status, p.detail)"
    done = subprocess.run(
        ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", "--", sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(REPO), "PATH": os.environ["PATH"]},
        cwd="/",
    )
    assert done.stdout == "accepted a user and network namespace\n", done.stdout + done.stderr


def test_no_permission_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(sandbox: Sandbox, wanted: object) -> int:
        raise TransactionError((Failure(None, errno.EPERM),))

    monkeypatch.setattr(Sandbox, "commit", refuse)
    found = prove(operations(1, 1))
    assert found.status == "not-tried" and "Operation not permitted" in found.detail


@pytest.mark.root
def test_user_namespaces_are_switched_off() -> None:
    """As on hardened systems, for an ordinary user: in a user namespace whose own limit is 0."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all -- "$@"'
    code = "from tests.test_migrate_proof import *; p = prove(operations(1, 1)); print(p.status, p.detail)"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(REPO), "PATH": os.environ["PATH"]},
        cwd="/",
    )
    assert done.stdout.startswith("not-tried no network namespace can be made"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.exit(1)", "has ended"),
        ('print(\'{"errno": 1, "step": "unshare"}\')', "no network namespace can be made"),
        ('print(\'{"errno": 93, "step": "socket"}\')', "nftables cannot be reached"),
        ('print(\'{"errno": 28, "step": "unshare"}\')', "user.max_"),
    ],
)
def test_a_child_that_cannot(program: str, words: str) -> None:
    found = prove(operations(1, 1), lambda: Sandbox((sys.executable, "-c", program)))
    assert found.status == "not-tried" and words in found.detail


def test_a_child_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "PATIENCE", 0.1)
    found = prove(operations(1, 1), lambda: Sandbox((sys.executable, "-c", "import time; time.sleep(60)")))
    assert found.status == "not-tried" and "not answered" in found.detail


def test_a_child_that_cannot_be_started() -> None:
    found = prove(operations(1, 1), lambda: Sandbox(("/nonexistent",)))
    assert found.status == "not-tried" and "no process can be started" in found.detail


@pytest.mark.root
def test_many_failures_are_summed_up() -> None:
    lost = [AddChain(Chain(Table(Family.IPV4, "nowhere"), f"lost-{number}")) for number in range(9)]
    found = prove([*operations(1, 1), *lost])
    assert found.status == "refused" and found.detail.count("lost-") == proof.SHOWN
    assert found.detail.endswith("; and 4 more")
