"""Errors of sockets, TLS and HTTP in the words of who has to mend them. Pure."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from typing import Final

# OpenSSL's X509_V_ERR_*, by ssl.SSLCertVerificationError.verify_code.
_NOT_YET_VALID, _EXPIRED, _HOST_MISMATCH, _ADDRESS_MISMATCH = 9, 10, 62, 64
_UNKNOWN_CA: Final = (2, 18, 19, 20, 21)

_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "the server wants a client certificate, and we have none",
    "CERTIFICATE_EXPIRED": "the server refuses our client certificate: it has expired",
    "CERTIFICATE_REVOKED": "the server refuses our client certificate: it is revoked",
    "UNKNOWN_CA": "the server refuses our client certificate: it does not know who signed it",
    "BAD_CERTIFICATE": "the server refuses our client certificate",
    "CERTIFICATE_UNKNOWN": "the server refuses our client certificate",
    "UNSUPPORTED_CERTIFICATE": "the server refuses our client certificate",
    "ACCESS_DENIED": "the server refuses our client certificate",
    "HANDSHAKE_FAILURE": "the server and we have no TLS version and cipher in common, or it wants a client certificate",
    "PROTOCOL_VERSION": "the server and we have no TLS version in common",
    "UNRECOGNIZED_NAME": "the server does not know the host name that we ask for: see tls-server-name",
}


def words(error: BaseException) -> str:
    """The innermost cause, in a line that is the same for the same cause (urllib3's own words hold an object's id)."""
    inner = error
    while (cause := inner.__cause__ or _named(inner)) is not None:
        inner = cause
    if isinstance(inner, ssl.SSLError):
        return _tls(inner)
    if isinstance(inner, TimeoutError):
        return "timed out"
    if isinstance(inner, socket.gaierror):
        return f"the host's name cannot be looked up: {inner.strerror}"
    if isinstance(inner, http.client.IncompleteRead):
        return "the connection was closed in the middle of an answer"
    if isinstance(inner, http.client.RemoteDisconnected):
        return "the server closed the connection without an answer (does it speak TLS at this port?)"
    if isinstance(inner, http.client.BadStatusLine):
        return "the answer is not HTTP (does the server speak TLS at this port?)"
    text = getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
    if "doesn't match" in text:  # urllib3's CertificateError, which names the certificate's names
        return f"the server's certificate is for another host: {_line(text)}"
    return _line(text)


def _named(error: BaseException) -> BaseException | None:
    """The cause as urllib3 gives it."""
    return next((argument for argument in error.args if isinstance(argument, BaseException)), None)


def _tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification(error)
    reason = getattr(error, "reason", None) or ""
    for alert, meaning in _ALERTS.items():
        if reason.endswith(f"ALERT_{alert}"):
            return meaning
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "the server does not speak TLS at this port: is the address http://, or the port another?"
    if isinstance(error, ssl.SSLEOFError) or reason == "UNEXPECTED_EOF_WHILE_READING":
        return "the connection was closed in the middle of TLS"
    return f"TLS: {reason.lower().replace('_', ' ')}" if reason else f"TLS: {_line(str(error))}"


def _verification(error: ssl.SSLCertVerificationError) -> str:
    code, said = error.verify_code, error.verify_message
    if code == _EXPIRED:
        return "the server's certificate, or one that it rests on, has expired (or this node's clock is ahead)"
    if code == _NOT_YET_VALID:
        return "the server's certificate is not yet valid: is this node's clock right?"
    if code in _UNKNOWN_CA:
        return (
            f"the server's certificate is of none of the authorities that we have: see certificate-authority ({said})"
        )
    if code in (_HOST_MISMATCH, _ADDRESS_MISMATCH):
        return f"the server's certificate is for another host: {_line(said)}"
    return f"the server's certificate cannot be verified: {_line(said)}"


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
