"""Which files a server's certificates are in. Here, so that who serves no TLS does not load the ssl module."""

from __future__ import annotations

from msgspec import Struct

from proxy.errors import ConfigError


class TlsFiles(Struct, frozen=True):
    """Paths of PEM files. certificate and key may be one file. client_ca: '': anybody may ask; else only who has a
    certificate of one of these authorities."""

    certificate: str
    key: str
    client_ca: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.certificate, self.key, self.client_ca)))


def tls_files(certificate: str, key: str, client_ca: str) -> TlsFiles | None:
    """From the flags --metrics-tls-cert-file, -key-file and --metrics-client-ca-file; None: none of them. Raises
    ConfigError when one does not go without another."""
    if not (certificate or key or client_ca):
        return None
    if not (certificate and key):
        missing = "--metrics-tls-key-file" if certificate else "--metrics-tls-cert-file"
        raise ConfigError(missing, "it is missing, and another flag for TLS is there", "give both, or none of them")
    return TlsFiles(certificate, key, client_ca)
