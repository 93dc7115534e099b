"""A number from `offset` on, below `offset + modulus`: what chooses an endpoint. Drawn, or, `in_turn`, counted up."""

from __future__ import annotations

from rules import expressions as e


def numgen_text(modulus: int, offset: int, in_turn: bool = False) -> str:
    """As nft writes it."""
    number = f"numgen {'inc' if in_turn or modulus == 1 else 'random'} mod {modulus}"
    return number + (f" offset {offset}" if offset else "")


def numgen(modulus: int, offset: int, register: int, in_turn: bool = False) -> e.NumberGenerator:
    """Into the register."""
    kind = e.NumberGenerator.INCREMENTAL if in_turn or modulus == 1 else e.NumberGenerator.RANDOM
    return e.NumberGenerator(modulus, kind, register, offset)
