"""Who we are to the API server: TLS context and headers, from files that are replaced while we run.

Tokens are renewed hourly, certificates and authorities now and then, and nobody tells us. So everything is looked at
before each request, of which there are few: a token is read, and of the other files it is seen whether they changed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import structlog

from proxy.connection_errors import words
from proxy.errors import SourceError
from proxy.kubeconfig import Access, Pem

EARLY: Final = 60.0
"""How long before a plugin's token expires a new one is fetched, in seconds."""

log = structlog.get_logger()


class Credentials:
    """What the files say that `read` names. Raises SourceError if that cannot be used; later only logs it, and goes on
    with what was good. Not for use by several threads at once.

    access: where to and as whom. context: for TLS, None where no server wants it. `version` counts their changes.
    """

    def __init__(self, read: Callable[[], Access], kubeconfig: str, clock: Callable[[], float] = time.time) -> None:
        self._read, self._kubeconfig, self._clock = read, kubeconfig, clock
        self._token = ""
        self._plugin = _Plugin(clock)
        self._complaint = ""
        self.version = 0
        self._load()
        self._authorization()

    def refresh(self, refused: bool = False) -> dict[str, str]:
        """Look whether anything changed. `refused`: the server did not want what we had. Returns the Authorization
        header, if there is to be one."""
        complaint = ""
        try:
            if refused:
                self._plugin.distrust()
            if refused or self._seen != self._look() or self._plugin.is_due:
                self._load()
        except SourceError as error:
            complaint = str(error)
        try:
            headers = self._authorization()
        except SourceError as error:  # it is being replaced, or was lost: the old one may still do
            complaint, headers = complaint or str(error), _bearer(self._token) if self._token else {}
        if complaint and complaint != self._complaint:
            log.warning("api_credentials_not_refreshed", cause=complaint, then="use those from before")
        self._complaint = complaint
        return headers

    def _authorization(self) -> dict[str, str]:
        access = self.access
        token = _read_token(access.token_file) if access.token_file else self._plugin.token or access.token
        if token and not (token.isascii() and token.isprintable()):
            source = access.token_file or access.source
            raise SourceError(
                source, "the token has characters that no token has", "write the token alone, on one line"
            )
        self._token = token
        if token:
            return _bearer(token)
        if access.username:
            pair = f"{access.username}:{access.password}".encode()
            return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        return {}

    def _load(self) -> None:
        seen = [_stat(self._kubeconfig)]
        access = self._read()
        seen += [_stat(file) for file in access.files]  # before they are read: what changes meanwhile is seen next time
        certificate, key = access.certificate, access.key
        if access.plugin is not None:
            self._plugin.run(access)
            if self._plugin.certificate:
                certificate, key = self._plugin.certificate, self._plugin.key
        context = None
        if any(url.startswith("https:") for url in access.servers):
            context = tls_context(access, certificate, key)
        self.access, self.context, self._seen = access, context, seen
        self.version += 1

    @property
    def files(self) -> list[str]:
        """All that are read again."""
        return [file for file in (self._kubeconfig, self.access.token_file, *self.access.files) if file]

    def _look(self) -> list[tuple[int, ...]]:
        """Changes when one of the files does."""
        return [_stat(file) for file in (self._kubeconfig, *self.access.files)]


def _stat(file: str) -> tuple[int, ...]:
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _read_token(file: str) -> str:
    try:
        token = Path(file).read_text().strip()
    except (OSError, ValueError) as e:
        raise SourceError(file, getattr(e, "strerror", None) or "not text", "it should hold a token") from None
    if not token:
        raise SourceError(file, "the file is empty", "it should hold a token")
    return token


# -- TLS ---------------------------------------------------------------------------------------------------------------


def tls_context(access: Access, certificate: Pem, key: Pem) -> ssl.SSLContext:
    """Reads the files. Raises SourceError, which names those that are of no use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not access.ca:
        context.load_default_certs()
    else:
        with _blame(access, "CA certificate", access.ca):
            if access.ca.data:
                context.load_verify_locations(cadata=access.ca.data.decode("ascii"))
            else:
                context.load_verify_locations(access.ca.file)
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if bool(certificate) != bool(key):
        missing = "key" if certificate else "certificate"
        raise SourceError(access.source, f"the user has no client {missing}", "give certificate and key, or neither")
    if certificate:
        blame = _blame(access, "client certificate and key", certificate, key)
        with blame, _path(certificate) as certificate_path, _path(key) as key_path:
            context.load_cert_chain(certificate_path, key_path, password=_no_password)
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted, and nobody is here to type the password")


@contextlib.contextmanager
def _blame(access: Access, what: str, *pems: Pem) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as e:  # ssl.SSLError is an OSError
        where = " and ".join("the kubeconfig" if pem.data else pem.file for pem in pems)
        cause = "not PEM" if isinstance(e, ssl.SSLError | UnicodeDecodeError) else words(e)
        if isinstance(e, ssl.SSLError) and e.reason == "KEY_VALUES_MISMATCH":
            cause = "the key is not that of the certificate"
        raise SourceError(access.source, f"{what} in {where}: {cause}", "they must be PEM") from None


@contextlib.contextmanager
def _path(pem: Pem) -> Iterator[str]:
    """A path to read it from: OpenSSL wants one. What is in the kubeconfig is put in memory, not on a disk."""
    if not pem.data:
        yield pem.file
        return
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem.data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


# -- Credential plugins ------------------------------------------------------------------------------------------------


class _Plugin:
    """A program that gives credentials (client.authentication.k8s.io), run by the `kubernetes` package."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.token, self.certificate, self.key = "", Pem(), Pem()
        self._expires: float | None = None
        self._ran = False

    def distrust(self) -> None:
        """What it gave was refused: it is to be run again."""
        self._ran = False

    @property
    def is_due(self) -> bool:
        """What it gave is about to expire."""
        return self._ran and self._expires is not None and self._clock() >= self._expires - EARLY

    def run(self, access: Access) -> None:
        """Unless what it gave is still good. Raises SourceError."""
        if self._ran and not self.is_due:
            return
        try:
            from kubernetes.config import ConfigException
            from kubernetes.config.exec_provider import ExecProvider
            from kubernetes.config.kube_config import ConfigNode
        except ImportError as e:
            cause = f"the user has a credential plugin, which cannot be run: {e}"
            raise SourceError(access.source, cause, "install the Python package kubernetes") from None
        remedy = "run the credential plugin of the current user by hand"
        try:
            status: dict[str, Any] = ExecProvider(ConfigNode("exec", access.plugin), access.cwd).run()  # type: ignore[no-untyped-call]
        except ConfigException as e:
            raise SourceError(access.source, " ".join(str(e).split()), remedy) from None
        except OSError as e:
            raise SourceError(e.filename or access.source, e.strerror or str(e), remedy) from None
        except (AttributeError, KeyError, TypeError, ValueError) as e:  # what the package says of misshapen entries
            raise SourceError(access.source, f"exec: misshapen ({type(e).__name__})", remedy) from None
        self.token = str(status.get("token") or "").strip()
        self.certificate = Pem(data=str(status.get("clientCertificateData") or "").encode())
        self.key = Pem(data=str(status.get("clientKeyData") or "").encode())
        self._expires = None
        with contextlib.suppress(KeyError, ValueError, TypeError):
            self._expires = datetime.fromisoformat(status["expirationTimestamp"]).timestamp()
        self._ran = True
