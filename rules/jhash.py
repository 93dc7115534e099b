"""Jenkins' hash, which chooses the endpoint where a client's address decides, as the kernel computes it. Pure."""

from __future__ import annotations

from typing import Final

_ALL: Final = 0xFFFFFFFF


def jhash(data: bytes, seed: int) -> int:
    """Jenkins' hash as the kernel has it (linux/jhash.h); data: a multiple of 4 bytes."""
    words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]
    a = b = c = (0xDEADBEEF + len(data) + seed) & _ALL
    while len(words) > 3:
        a, b, c = (a + words[0]) & _ALL, (b + words[1]) & _ALL, (c + words[2]) & _ALL
        words = words[3:]
        for kind, bits in zip("abcabc", (4, 6, 8, 16, 19, 4), strict=True):
            if kind == "a":
                a, c = ((a - c) & _ALL) ^ _turned(c, bits), (c + b) & _ALL
            elif kind == "b":
                b, a = ((b - a) & _ALL) ^ _turned(a, bits), (a + c) & _ALL
            else:
                c, b = ((c - b) & _ALL) ^ _turned(b, bits), (b + a) & _ALL
    if not words:
        return c
    a, b, c = (value + word & _ALL for value, word in zip((a, b, c), [*words, 0, 0][:3], strict=True))
    for kind, bits in zip("cabcabc", (14, 11, 25, 16, 4, 14, 24), strict=True):
        if kind == "a":
            a = ((a ^ c) - _turned(c, bits)) & _ALL
        elif kind == "b":
            b = ((b ^ a) - _turned(a, bits)) & _ALL
        else:
            c = ((c ^ b) - _turned(b, bits)) & _ALL
    return c


def _turned(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _ALL
