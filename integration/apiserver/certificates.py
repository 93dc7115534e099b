"""Certificates for servers and clients of tests, made with the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

LOCAL = ("127.0.0.1", "localhost")
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def available() -> bool:
    return shutil.which("openssl") is not None


class Authority:
    """Signs certificates. All are files in `directory`, PEM; `ca` is its own certificate."""

    def __init__(self, directory: Path, name: str = "test-ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._count = directory, 0
        self.ca, self._key = str(directory / "ca.crt"), str(directory / "ca.key")
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        _run("req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={name}", *usage, "-keyout", self._key,
             "-out", self.ca)  # fmt: skip

    def server(self, hosts: Sequence[str] = LOCAL, *, expired: bool = False) -> tuple[str, str]:
        """Certificate and key of a server with these addresses and names."""
        names = ",".join(f"{'IP' if host[0].isdigit() or ':' in host else 'DNS'}:{host}" for host in hosts)
        return self._sign(f"/CN={hosts[0]}", expired, "extendedKeyUsage=serverAuth", f"subjectAltName={names}")

    def client(self, user: str, *groups: str, expired: bool = False) -> tuple[str, str]:
        """Certificate and key of a user in these groups."""
        organizations = "".join(f"/O={group}" for group in groups)
        return self._sign(f"{organizations}/CN={user}", expired, "extendedKeyUsage=clientAuth")

    def _sign(self, subject: str, expired: bool, *extensions: str) -> tuple[str, str]:
        self._count += 1
        stem = self._directory / f"{self._count}"
        cert, key, request, wanted = (str(stem.with_suffix(s)) for s in (".crt", ".key", ".csr", ".ext"))
        always = ("keyUsage=critical,digitalSignature", "basicConstraints=critical,CA:FALSE",
                  "subjectKeyIdentifier=hash", "authorityKeyIdentifier=keyid")  # fmt: skip
        Path(wanted).write_text("\n".join([*always, *extensions, ""]))
        _run("req", "-new", *_NEW_KEY, "-subj", subject, "-keyout", key, "-out", request)
        _run("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-CAcreateserial",
             "-days", "-1" if expired else "2", "-extfile", wanted, "-out", cert)  # fmt: skip
        return cert, key


def signing_key(directory: Path) -> tuple[str, str]:
    """A private RSA key and its public half, as service account tokens are signed with."""
    key, public = str(directory / "sa.key"), str(directory / "sa.pub")
    _run("genrsa", "-out", key, "2048")
    _run("rsa", "-in", key, "-pubout", "-out", public)
    return key, public


def _run(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(arguments)}: {done.stderr.strip()}")
