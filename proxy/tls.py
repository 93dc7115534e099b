"""Certificates that a server shows and asks for, read again when their files change.

For the volumes that the kubelet renews in place: Pod Certificates (KEP-4317), ClusterTrustBundles (KEP-3257), Secrets.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

import structlog

from proxy.errors import ConfigError
from proxy.http_connections import Wrap
from proxy.tls_files import TlsFiles

LOG = structlog.get_logger()

REMEDY: Final = (
    "give PEM files: a certificate with its chain, its key without a passphrase, and the clients' authorities"
)

_Marks = tuple[tuple[int, int, int] | None, ...]


class Certificates:
    """What the files say. Raises ConfigError when they cannot be used at the start; later, what they said last stays.

    name: begins the log events.
    """

    def __init__(self, files: TlsFiles, name: str = "metrics") -> None:
        self._files, self._name = files, name
        self._marks = _look(files)
        try:
            self._context = _load(files)
        except (OSError, ValueError) as error:
            raise ConfigError(", ".join(dict.fromkeys(files.paths)), _words(error), REMEDY) from None

    def context(self) -> ssl.SSLContext:
        """For a connection that begins now. Costs a look at the files' times."""
        marks = _look(self._files)  # before they are read: what comes in between is seen the next time
        if marks != self._marks:
            self._marks = marks
            try:
                self._context = _load(self._files)
            except (OSError, ValueError) as error:
                LOG.error(
                    f"{self._name}_certificates_unusable",
                    files=self._files.paths,
                    cause=_words(error),
                    then="those that were read before are used; the files are read again when they change",
                    remedy=REMEDY,
                )
            else:
                LOG.info(f"{self._name}_certificates_read", files=self._files.paths)
        return self._context


class TlsSocket(ssl.SSLSocket):
    """The server's end, which does not block: where the other side has to be waited for, it raises BlockingIOError as a
    plain socket does. The handshake is a part of the first `recv`. What goes wrong in it is an OSError."""

    _has_shaken_hands = _has_said_goodbye = False

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            if not self._has_shaken_hands:
                self.do_handshake()
                self._has_shaken_hands = True
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def send(self, data: object, flags: int = 0) -> int:
        try:
            return super().send(data, flags)  # type: ignore[arg-type]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def shutdown(self, how: int) -> None:
        self._say_goodbye()
        super().shutdown(how)

    def close(self) -> None:
        self._say_goodbye()
        super().close()

    def _say_goodbye(self) -> None:
        """So that the client knows that this was all; whether it says the same is not waited for."""
        if self._has_shaken_hands and not self._has_said_goodbye:
            self._has_said_goodbye = True
            try:
                self.unwrap()
            except (OSError, ValueError):
                pass


def _load(files: TlsFiles) -> ssl.SSLContext:
    """Raises OSError (of which SSLError is one), ValueError."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    # A connection is one request: there is nothing to resume, and nothing to negotiate again.
    made.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    made.num_tickets = 0
    made.sslsocket_class = TlsSocket
    made.load_cert_chain(files.certificate, files.key, password=_no_passphrase)
    if files.client_ca:
        made.load_verify_locations(files.client_ca)
        made.verify_mode = ssl.CERT_REQUIRED
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # whoever is in the file is trusted, as in Go's programs
    return made


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase, and there is nobody to give it")


def _look(files: TlsFiles) -> _Marks:
    """What tells a file from another that has taken its place."""
    marks: list[tuple[int, int, int] | None] = []
    for path in files.paths:
        try:
            found = os.stat(path)
        except OSError:
            marks.append(None)
        else:
            marks.append((found.st_mtime_ns, found.st_ino, found.st_size))
    return tuple(marks)


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        reasons = {
            "KEY_VALUES_MISMATCH": "the key is not the certificate's",
            "PEM_LIB": "there is no PEM of that kind in one of them",
            "NO_START_LINE": "there is no PEM of that kind in one of them",
            "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in the authorities' file",
        }
        return reasons.get(error.reason or "", str(error))
    return f"{error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)


def wrapping(certificates: Certificates) -> Wrap:
    """For a proxy.page_server.PageServer: TLS on whatever it accepts."""

    def wrap(sock: socket.socket) -> socket.socket:
        return certificates.context().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    return wrap
