"""Bytes, damaged: as a disk, a network, a text editor or an adversary would."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Final

Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]
"""A damaged copy of the second argument. The third: what else there is, to take parts from."""

LARGEST: Final = 1 << 16
"""No input grows beyond it, or beyond the real one that it is made from."""
_NUMBERS: Final = (0, 1, 3, 4, 5, 7, 8, 15, 16, 17, 20, 127, 128, 255, 256, 4096, 32767, 32768, 65535)
_WORDS: Final = (0, 1, 16, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_DIGITS: Final = (b"0", b"-1", b"00", b"65535", b"65536", b"2147483648", b"18446744073709551616", b"1e400", b"9" * 5000)


def mutation(tokens: Sequence[bytes] = (), others: Sequence[Mutation] = ()) -> Mutation:
    """One or some of all kinds of damage. tokens: what means something in this format. others: what knows its structure."""

    def mutate(rand: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
        limit = max(LARGEST, len(data))
        while True:
            if others and rand.random() < 0.6:
                data = rand.choice(others)(rand, data, corpus)
            else:
                data = rand.choice(_KINDS)(rand, data, corpus, tokens)
            data = data[:limit]
            if rand.random() < 0.5:
                return data

    return mutate


def _range(rand: random.Random, data: bytes) -> tuple[int, int]:
    start = rand.randint(0, len(data))
    return start, min(len(data), start + int(2 ** rand.uniform(0, 10)))


def _flip(rand: random.Random, data: bytes, *_: object) -> bytes:
    changed = bytearray(data or b"\0")
    for _bit in range(rand.choice((1, 1, 1, 4))):
        changed[rand.randrange(len(changed))] ^= 1 << rand.randrange(8)
    return bytes(changed)


def _put(rand: random.Random, data: bytes, *_: object) -> bytes:
    at = rand.randint(0, len(data))
    return data[:at] + rand.randbytes(rand.choice((1, 1, 2, 4, 16))) + data[at + rand.randint(0, 4) :]


def _cut(rand: random.Random, data: bytes, *_: object) -> bytes:
    return data[: rand.randint(0, len(data))]


def _drop(rand: random.Random, data: bytes, *_: object) -> bytes:
    start, end = _range(rand, data)
    return data[:start] + data[end:]


def _repeat(rand: random.Random, data: bytes, *_: object) -> bytes:
    start, end = _range(rand, data)
    times = rand.choice((2, 2, 3, 10, 100, 100_000))
    times = min(times, LARGEST // max(1, end - start))
    return data[:start] + data[start:end] * times + data[end:]


def _swap(rand: random.Random, data: bytes, *_: object) -> bytes:
    (a, b), (c, d) = sorted((_range(rand, data), _range(rand, data)))
    c, d = max(b, c), max(b, d)
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def _splice(rand: random.Random, data: bytes, corpus: Sequence[bytes], _: object) -> bytes:
    other = rand.choice(corpus)
    start, end = _range(rand, other)
    first, last = _range(rand, data)
    return data[:first] + other[start:end] + data[rand.choice((first, last)) :]


def _cross(rand: random.Random, data: bytes, corpus: Sequence[bytes], _: object) -> bytes:
    other = rand.choice(corpus)
    return data[: rand.randint(0, len(data))] + other[rand.randint(0, len(other)) :]


def _token(rand: random.Random, data: bytes, _: object, tokens: Sequence[bytes]) -> bytes:
    token = rand.choice(tokens) if tokens else rand.randbytes(4)
    at = rand.randint(0, len(data))
    over = len(token) if rand.random() < 0.3 else 0
    return data[:at] + token + data[at + over :]


def _nest(rand: random.Random, data: bytes, _: object, tokens: Sequence[bytes]) -> bytes:
    """Far too many of one thing."""
    token = rand.choice(tokens) if tokens else b"\0"
    at = rand.randint(0, len(data))
    return data[:at] + token * rand.choice((100, 1100, LARGEST // max(1, len(token)))) + data[at:]


def _length(rand: random.Random, data: bytes, *_: object) -> bytes:
    """A number of 2 or 4 bytes, as lengths are: a little more or less than it was, or much."""
    form = rand.choice(("=H", ">H", "=I", ">I"))
    size = struct.calcsize(form)
    if len(data) < size:
        return data
    at = rand.randint(0, len(data) - size)
    at -= at % size if rand.random() < 0.8 else 0
    (value,) = struct.unpack_from(form, data, at)
    value = rand.choice((value + rand.randint(-8, 8), value * 2, rand.choice(_NUMBERS), rand.choice(_WORDS)))
    return data[:at] + struct.pack(form, value % (1 << 8 * size)) + data[at + size :]


def _digits(rand: random.Random, data: bytes, *_: object) -> bytes:
    """A number that is written in digits."""
    found = list(re.finditer(rb"\d+", data[:LARGEST]))
    if not found:
        return data
    place = rand.choice(found)
    return data[: place.start()] + rand.choice(_DIGITS) + data[place.end() :]


_KINDS: Final = (_flip, _put, _cut, _drop, _repeat, _swap, _splice, _cross, _token, _token, _nest, _length, _digits)
