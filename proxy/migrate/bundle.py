"""A bundle: one file with all that a report is made of, to be made on a node and read elsewhere. gzip'd JSON."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from typing import Final

import msgspec
from msgspec import Struct

from proxy.errors import SourceError
from proxy.migrate import whole_file
from proxy.migrate.bundle_text import Bundle, to_facts, to_text
from proxy.migrate.facts import FORMAT, Facts
from proxy.model import DECODE_ERRORS

LARGEST_FILE: Final = 256 << 20
LARGEST: Final = 512 << 20
"""Bytes of its JSON. A bundle of 10,000 Services with 10 endpoints has 40 MB."""
_PREFIX: Final = FORMAT.rpartition("/")[0]
_REMEDY: Final = "make it again, with `kube-proxy-nft migrate collect FILE`"


class _Header(Struct):
    format: str = ""


def encode(facts: Facts) -> bytes:
    """The same facts give the same bytes."""
    text = msgspec.json.format(msgspec.json.encode(to_text(facts)), indent=1)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as file:
        file.write(text)
    return packed.getvalue()


def write(facts: Facts, path: str) -> int:
    """The file is there as a whole, or not at all; "-": standard output. Its size in bytes. Raises UserError."""
    data = encode(facts)
    whole_file.write(path, data, "bundle")
    return len(data)


def read(path: str) -> Facts:
    """path: "-" for standard input. Raises SourceError."""
    what = "standard input" if path == "-" else path
    try:
        if path == "-":
            data = sys.stdin.buffer.read(LARGEST_FILE + 1) if sys.stdin else b""
        else:
            with open(path, "rb") as file:
                data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise SourceError(what, error.strerror or str(error), "check the path and its permissions") from None
    if len(data) > LARGEST_FILE:
        raise SourceError(what, f"it is larger than {LARGEST_FILE >> 20} MiB: no bundle is", _REMEDY)
    return decode(data, what)


def decode(data: bytes, what: str) -> Facts:
    """what: the name of the bundle in errors. Raises SourceError."""
    text = _unpacked(data, what)
    try:
        found = msgspec.json.decode(text, type=_Header).format
    except DECODE_ERRORS:
        raise SourceError(what, "it is no bundle: no JSON object", _REMEDY) from None
    if found != FORMAT:
        if found.startswith(f"{_PREFIX}/"):
            cause = (
                f"it has the format {found.rpartition('/')[2][:20]}, and this version reads {FORMAT.rpartition('/')[2]}"
            )
            raise SourceError(what, cause, "use the version of kube-proxy-nft that made it, or make it again")
        raise SourceError(what, "it is no bundle: its format is another one", _REMEDY)
    try:
        return to_facts(msgspec.json.decode(text, type=Bundle))
    except (*DECODE_ERRORS, ValueError) as error:
        raise SourceError(what, f"it is a damaged bundle: {' '.join(str(error).split())[:300]}", _REMEDY) from None


def _unpacked(data: bytes, what: str) -> bytes:
    if not data:
        raise SourceError(what, "it is empty", _REMEDY)
    if data[:2] != b"\x1f\x8b":
        if data[:1] == b"{" and len(data) <= LARGEST:
            return data  # somebody has unpacked it to read it
        raise SourceError(what, "it is no bundle: not gzip'd", _REMEDY)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(LARGEST + 1)
    except EOFError:
        raise SourceError(what, "it is not all there: it was cut off", _REMEDY) from None
    except (OSError, zlib.error) as error:
        raise SourceError(what, f"it is damaged: {error}", _REMEDY) from None
    if len(text) > LARGEST:
        raise SourceError(what, f"it unpacks to more than {LARGEST >> 20} MiB: no bundle does", _REMEDY)
    return text
