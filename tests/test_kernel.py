"""The socket: what the kernel refuses becomes one clear error, and what it lacks is named."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import ClassVar

import pytest

from proxy.errors import KernelTooOld, NoPermission, RulesRefused
from proxy.refusals import explain
from rules import expressions as e
from rules import kernel as kernel_module
from rules.errors import Failure, TransactionError, describe
from rules.kernel import Kernel
from rules.layout import LAYOUTS, Options
from rules.objects import Family, Rule, Table
from rules.statements.verdicts import drop
from rules.tables import create
from rules.transaction import AddElement, AddRule, Operation
from tests.netns import Namespace, in_new_namespace

V4 = LAYOUTS[Family.IPV4]


@dataclass(frozen=True, slots=True)
class Nonsense(e.Expression):
    """An expression that no kernel has."""

    NAME: ClassVar = "nonsense"


class SayNonsense:
    def text(self, family: Family) -> str:
        return "nonsense"

    def expressions(self, family: Family) -> tuple[e.Expression, ...]:
        return (*drop().expressions(family)[:0], e.Meta(e.Meta.MARK, register=1), Nonsense())


def test_an_expression_that_the_kernel_lacks_is_named(namespace: Namespace) -> None:
    rule = AddRule(Rule(V4.chain("refuse"), (SayNonsense(),)))
    with pytest.raises(TransactionError) as caught:
        namespace.kernel.commit([*create(V4, Options(), ()), rule])
    assert caught.value.missing_expressions == ("nonsense",)
    assert caught.value.failures[0].operation == rule
    assert namespace.kernel.dump(V4.table) is None
    told = explain(caught.value)
    assert isinstance(told, KernelTooOld)
    assert "nonsense" in str(told)


def test_the_option_that_brings_an_expression_is_named() -> None:
    told = explain(TransactionError((Failure(None, errno.ENOENT, "numgen"),)))
    assert isinstance(told, KernelTooOld)
    assert "CONFIG_NFT_NUMGEN" in str(told)
    assert told.exit_code == 6


def test_a_refusal_names_the_service_port() -> None:
    operation = AddElement(
        V4.cluster_ip_ports, bytes([10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]), comment="default/web:http"
    )
    told = explain(TransactionError((Failure(operation, errno.EBUSY),)))
    assert isinstance(told, RulesRefused)
    assert "10.96.0.1 . tcp . 80" in str(told)
    assert "default/web:http" in str(told)


@pytest.mark.parametrize("operation", create(V4, Options(), ())[:60:7], ids=lambda o: type(o).__name__)
def test_every_operation_can_be_described(operation: Operation) -> None:
    assert describe(operation).startswith("add ")
    assert "kube-proxy-nft" in describe(operation)


def test_without_permission_the_kernel_says_so(namespace: Namespace) -> None:
    """As another user, in the same namespace."""
    program = """
        import os
        from rules.kernel import Kernel
        from rules.layout import LAYOUTS
        from rules.tables import remove
        from rules.errors import TransactionError
        from proxy.refusals import explain
        os.setgid(65534); os.setuid(65534)
        try:
            Kernel().commit(remove(next(iter(LAYOUTS.values()))))
        except TransactionError as error:
            told = explain(error)
            print(type(told).__name__, told.exit_code, told)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("NoPermission 5 "), done.stderr
    assert "CAP_NET_ADMIN" in done.stdout
    assert NoPermission.exit_code == 5


def test_a_batch_of_many_megabytes_is_one_transaction(namespace: Namespace) -> None:
    key = bytes(8)
    elements = [AddElement(V4.addresses.endpoints, i.to_bytes(4) + key + bytes(4), bytes(8)) for i in range(1, 200_001)]
    assert namespace.kernel.commit([*create(V4, Options(), ()), *elements]) > 8_000_000
    state = namespace.kernel.dump(V4.table)
    assert state is not None
    assert len(state.sets["endpoints"].elements) == 200_000


@pytest.mark.parametrize("told", [True, False], ids=["with a count", "an older kernel"])
def test_a_set_is_read_until_all_its_elements_have_come(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """A hash table that grows leaves some out of a dump."""
    keys = [bytes((10, 96, 0, i)) for i in range(9)]
    elements = [AddElement(V4.cluster_ips, key) for key in keys]
    namespace.kernel.commit([*create(V4, Options(), ()), *elements])
    whole = namespace.kernel.dump(V4.table)
    assert whole
    if whole.sets["cluster-ips"].count is None and told:
        pytest.skip("this kernel does not tell how many elements a set has; 6.18 does")
    assert not told or whole.sets["cluster-ips"].count == len(keys)
    if not told:
        monkeypatch.setattr("rules.dump.NFTA_SET_COUNT", 10_000)
    reads: list[int] = []
    read = Kernel._read

    def partly(self: Kernel, table: Table, name: str) -> dict[bytes, tuple[bytes, str]]:
        found = read(self, table, name)
        if name == "cluster-ips":
            reads.append(len(reads))
            found = {key: found[key] for key in (keys[:5] if len(reads) == 1 else keys)}
        return found

    monkeypatch.setattr(Kernel, "_read", partly)
    assert namespace.kernel.dump(V4.table) == whole
    assert len(reads) == (2 if told else 3)


def test_replies_of_an_interrupted_dump_do_not_confuse_the_next(namespace: Namespace) -> None:
    namespace.kernel.commit([*create(V4, Options(), ())])
    replies = namespace.kernel._list(7, Family.IPV4, V4.table.name)
    next(replies)
    del replies
    state = namespace.kernel.dump(V4.table)
    assert state is not None
    assert len(state.chains["pick-32"].rules) == 7


def test_the_error_of_a_small_send_buffer_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SO_SNDBUFFORCE is not permitted (a user namespace), a batch may not fit."""

    def small() -> Kernel:
        kernel = Kernel()
        monkeypatch.setattr(kernel_module, "enlarge", lambda *_: 4096)
        kernel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return kernel

    kernel = in_new_namespace(small)
    with pytest.raises(TransactionError, match=r"net\.core\.wmem_max"):
        kernel.commit(create(V4, Options(), ()))
    kernel.close()


def test_all_errors_of_a_large_batch_fit(namespace: Namespace) -> None:
    """Each of 3,000 rules is refused; all are reported."""
    rule = AddRule(Rule(V4.chain("nosuch"), (drop(),)))
    with pytest.raises(TransactionError) as caught:
        namespace.kernel.commit([*create(V4, Options(), ()), *[rule] * 3000])
    assert len(caught.value.failures) == 3000
    assert namespace.kernel.commit(create(V4, Options(), ())) > 0


def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        Namespace().close()
    assert len(os.listdir("/proc/self/fd")) == before
