"""Asks a running agent for its summary, over HTTP or HTTPS, and says who else answers."""

from __future__ import annotations

import ssl
from http import HTTPStatus
from typing import Final, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec
import urllib3
from msgspec import Struct

from proxy.connection_errors import words
from proxy.errors import SourceError, UsageError
from proxy.status import pages
from proxy.status.report import RejectedPage, Summary

SECONDS: Final = 5.0
"""For an answer."""
LARGEST: Final = 16 << 20
"""Bytes of an answer."""
US: Final = "kube-proxy-nft"

T = TypeVar("T")


class Tls(Struct, frozen=True):
    """Files (PEM), '' for none. server_name: in the certificate, '' for the URL's host."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""


class Client:
    """url: of the port, and of a path before /status if there is one. Raises UsageError."""

    def __init__(self, url: str, tls: Tls) -> None:
        parts = _parts(url)
        self._base = parts.geturl().rstrip("/")
        self._is_tls = parts.scheme == "https"
        if not self._is_tls and tls != Tls():
            raise UsageError("--url", f"it is {url!r}, and options for TLS are given", "say https://...")
        # No proxy: urllib3 asks the environment for none.
        self._pool = urllib3.PoolManager(retries=False, timeout=SECONDS)
        if self._is_tls:
            more = {"server_hostname": tls.server_name} if tls.server_name else {}
            self._pool = urllib3.PoolManager(retries=False, timeout=SECONDS, ssl_context=_context(tls), **more)  # type: ignore[arg-type]

    def summary(self) -> Summary:
        """Raises SourceError: nobody answers, or somebody else."""
        return self._ask(pages.SUMMARY, Summary)

    def rejected(self) -> RejectedPage:
        """The first page of what is left out. Raises SourceError."""
        return self._ask(pages.REJECTED, RejectedPage)

    def _ask(self, path: str, kind: type[T]) -> T:
        status, server, body = self._get(path)
        if status == HTTPStatus.OK and server == US:
            try:
                return msgspec.json.decode(body, type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                remedy = "use the command of the agent's own release"
                raise SourceError(self._base, f"the answer cannot be read: {error}", remedy) from None
        if status == HTTPStatus.SERVICE_UNAVAILABLE and server == US:
            raise SourceError(self._base, "the agent is starting", "ask again in a moment")
        raise self._somebody_else(status)

    def _somebody_else(self, status: int) -> SourceError:
        mode_status, server, body = self._get("/proxyMode")
        if server == US and mode_status == HTTPStatus.OK:
            remedy = "its /metrics say the same in numbers; --status-page=true gives the page back"
            return SourceError(self._base, "the agent answers, but its status page is switched off", remedy)
        mode = body[:40].decode(errors="replace").strip()
        if mode_status == HTTPStatus.OK and mode in ("iptables", "ipvs", "nftables"):
            remedy = "kube-proxy-nft detect says more of it"
            return SourceError(self._base, f"kube-proxy answers there, in mode {mode}, and not kube-proxy-nft", remedy)
        hint = "" if self._is_tls else "; if the port has TLS, say --url https://..."
        cause = f"somebody answers, and it is not kube-proxy-nft (HTTP status {status}{hint})"
        return SourceError(self._base, cause, "give the address of its metricsBindAddress with --url")

    def _get(self, path: str) -> tuple[int, str, bytes]:
        """Status, who serves, and the body. Raises SourceError."""
        try:
            answer = self._pool.request("GET", self._base + path, preload_content=False, redirect=False)
            body = answer.read(LARGEST + 1)
            answer.close()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            remedy = "is the agent running, and is this its metricsBindAddress? --url says another"
            if not self._is_tls and isinstance(error, urllib3.exceptions.ProtocolError):  # it is hung up on
                remedy = "if the port has TLS, say --url https://..."
            raise SourceError(self._base, f"no answer: {words(error)}", remedy) from None
        if len(body) > LARGEST:
            raise SourceError(self._base, "the answer has no end", "give the agent's address with --url")
        return answer.status, answer.headers.get("Server", ""), body


def _parts(url: str) -> SplitResult:
    remedy = "say http://ADDRESS:PORT or https://ADDRESS:PORT"
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise UsageError("--url", f"it is {url!r}: {error}", remedy) from None
    if not is_good or parts.query or parts.fragment or parts.username is not None:
        raise UsageError("--url", f"it is {url!r}", remedy)
    return parts


def _context(tls: Tls) -> ssl.SSLContext:
    """Raises UsageError."""
    if tls.key_file and not tls.cert_file:
        raise UsageError("--key-file", "it is given without --cert-file", "give both")
    at = "--ca-file"
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
        at = "--cert-file"
        if tls.cert_file:
            # Without a password: else it would ask for one on the terminal.
            context.load_cert_chain(tls.cert_file, tls.key_file or None, password="")
    except (OSError, ValueError) as error:
        why = (
            (getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)).replace("_", " ").lower()
        )
        remedy = "give PEM files, a key without a passphrase"
        raise UsageError(at, f"the files cannot be used: {why}", remedy) from None
    return context
