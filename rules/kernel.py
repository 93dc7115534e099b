"""The kernel's nftables over one NETLINK_NETFILTER socket, in the network namespace of the thread that opens it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from rules import wire
from rules.dump import (
    TableState,
    dump_request,
    read_chains,
    read_elements,
    read_rules,
    read_sets,
    read_table,
    table_request,
)
from rules.errors import Failure, KernelUnreachable, TransactionError
from rules.netlink import (
    GETCHAIN,
    GETRULE,
    GETSET,
    GETSETELEM,
    NETLINK_EXT_ACK,
    NLMSG_ERROR,
    SO_RCVBUFFORCE,
    SO_SNDBUFFORCE,
    SOL_NETLINK,
    Message,
    error_of,
    messages,
)
from rules.netlink_socket import DAMAGED, RECEIVE_SIZE, Replies, enlarge, open_socket
from rules.objects import Family, Table
from rules.transaction import Operation

RECEIVE_BUFFER: Final = 4 << 20  # a refused transaction may bring an error for each of its messages
DUMP_TRIES: Final = 10


def connect(timeout: float | None = None) -> socket.socket:
    """A socket to nftables. Raises KernelUnreachable."""
    try:
        return open_socket(timeout=timeout)
    except OSError as error:
        raise KernelUnreachable(error.errno or errno.EIO, "cannot open a netlink socket to netfilter") from error


class Kernel:
    """Raises KernelUnreachable if there is no socket to be had. Not for use by several threads at once."""

    def __init__(self) -> None:
        self._socket = connect()
        self._socket.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        self._sequence = 0
        self._send_buffer = 0
        enlarge(self._socket, SO_RCVBUFFORCE, socket.SO_RCVBUF, RECEIVE_BUFFER)

    @property
    def port(self) -> int:
        """The socket's port id, by which others know our transactions."""
        return int(self._socket.getsockname()[0])

    def close(self) -> None:
        self._socket.close()

    def commit(self, operations: Sequence[Operation]) -> int:
        """Apply all operations in one transaction, or raise TransactionError and apply none. Returns the bytes sent."""
        if not operations:
            return 0
        batch = wire.encode(operations, self._next_sequence())
        self._sequence = batch.last + 1
        if len(batch.data) + 4096 > self._send_buffer:
            # The kernel counts its own overhead; twice the size is more than it ever needs.
            size = max(1 << 20, 2 * len(batch.data))
            self._send_buffer = enlarge(self._socket, SO_SNDBUFFORCE, socket.SO_SNDBUF, size)
        try:
            self._socket.send(batch.data)
        except OSError as error:
            raise TransactionError((self._send_failure(error, len(batch.data)),)) from error
        # The kernel has done the whole batch when send returns: what it has to say is waiting.
        try:
            failures = self._failures(batch)
        except DAMAGED as error:
            raise TransactionError((Failure(None, errno.EBADMSG, str(error)),)) from error
        if failures:
            raise TransactionError(tuple(failures))
        return len(batch.data)

    def has(self, table: Table) -> bool:
        """Whether there is a table of this family and name. Raises KernelUnreachable."""
        try:
            return self._table(table) is not None
        except _Changed:
            raise KernelUnreachable(errno.EBUSY, "cannot read nftables") from None

    def _table(self, table: Table) -> TableState | None:
        """A table without what is in it; None: there is no such table."""
        try:
            return read_table(self._ask(table_request(table, self._next_sequence())), table.name)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise KernelUnreachable(error.errno or errno.EIO, "cannot read nftables") from error
        except DAMAGED as error:
            raise KernelUnreachable(errno.EBADMSG, f"cannot understand what nftables says ({error})") from error

    def dump(self, table: Table, *, settled: bool = False) -> TableState | None:
        """All of one table, or None if it is not there. Slow at size (0.5 s for 100,000 elements): for tests, starts
        and audits, never the steady state. settled: nothing was added a moment ago; then one read of each set will do.
        Raises KernelUnreachable."""
        for _ in range(DUMP_TRIES):
            try:
                return self._dump(table, settled)
            except _Changed:
                continue
            except OSError as error:
                raise KernelUnreachable(error.errno or errno.EIO, "cannot read nftables") from error
            except DAMAGED as error:
                raise KernelUnreachable(errno.EBADMSG, f"cannot understand what nftables says ({error})") from error
        raise KernelUnreachable(errno.EBUSY, f"table {table.family.nft} {table.name} changed during each of 10 reads")

    def _dump(self, table: Table, settled: bool) -> TableState | None:
        state = self._table(table)
        if state is None:
            return None
        try:
            state.chains.update(read_chains(self._list(GETCHAIN, table.family, table.name), table.name))
            for chain, rule in read_rules(self._list(GETRULE, table.family, table.name), table.name):
                state.chains[chain].rules.append(rule)
            state.sets.update(read_sets(self._list(GETSET, table.family, table.name), table.name))
            for name, found in state.sets.items():
                found.elements = self._read(table, name) if settled else self._elements(table, name, found.count)
        except (KeyError, FileNotFoundError):  # what one reply spoke of, the next does not know any more
            raise _Changed from None
        return state

    def _elements(self, table: Table, name: str, count: int | None) -> dict[bytes, tuple[bytes, str]]:
        """A set's elements. The kernel still spreads a hash table over more buckets after the transaction that made it
        grow, and a dump meanwhile misses some: only as many as the kernel says it has, or what two reads agree on, is
        true."""
        before: dict[bytes, tuple[bytes, str]] = {}
        for _ in range(DUMP_TRIES):
            now = self._read(table, name)
            if now == before or len(now) == count:
                return now
            before = now
        raise _Changed

    def _read(self, table: Table, name: str) -> dict[bytes, tuple[bytes, str]]:
        return dict(read_elements(self._list(GETSETELEM, table.family, table.name, name), table.name))

    def _list(self, kind: int, family: Family, table: str, set_name: str = "") -> Iterator[Message]:
        return self._ask(dump_request(kind, family, self._next_sequence(), table, set_name))

    def _ask(self, request: bytes) -> Iterator[Message]:
        """Send a request and give its replies up to the one that ends them. Raises OSError, _Changed."""
        replies = Replies(self._socket, request)
        try:
            for piece in replies:
                yield from piece
            if replies.disturbed:
                raise _Changed
        finally:
            # Who stops early leaves a dump under way, and the socket can do no other meanwhile: read it out.
            with suppress(OSError):
                for _ in replies:
                    pass

    def _failures(self, batch: wire.Batch) -> list[Failure]:
        """Read everything that the kernel says of the batch. (Not Replies: each of its messages may be refused.)"""
        failures: list[Failure] = []
        acknowledged = False
        flags = 0
        while True:
            try:
                data = self._socket.recv(RECEIVE_SIZE, flags)
            except BlockingIOError:
                return failures
            except OSError as error:
                if error.errno != errno.ENOBUFS or failures:
                    raise
                failures.append(Failure(None, errno.ENOBUFS, "more errors than the receive buffer holds"))
                flags = socket.MSG_DONTWAIT
                continue
            for reply in messages(data):
                if reply.kind != NLMSG_ERROR or not batch.first <= reply.sequence <= batch.last + 1:
                    continue
                code, offset = error_of(reply)
                if code:
                    failures.append(Failure(*self._blame(batch, reply.sequence, code, offset)))
                acknowledged |= reply.sequence == batch.last
            if acknowledged or failures:
                flags = socket.MSG_DONTWAIT

    @staticmethod
    def _blame(batch: wire.Batch, sequence: int, code: int, offset: int) -> tuple[Operation | None, int, str]:
        operation, detail = batch.at(sequence, offset)
        return operation, code, detail

    def _send_failure(self, error: OSError, size: int) -> Failure:
        if error.errno in (errno.EMSGSIZE, errno.ENOBUFS):
            return Failure(
                None,
                error.errno,
                f"{size} bytes do not fit the socket's send buffer of {self._send_buffer}: "
                "raise net.core.wmem_max or give CAP_NET_ADMIN",
            )
        return Failure(None, error.errno or errno.EIO)

    def _next_sequence(self) -> int:
        self._sequence = (self._sequence + 1) & 0x3FFFFFFF
        return self._sequence


class _Changed(Exception):
    """The table changed while it was read."""
