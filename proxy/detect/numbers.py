"""Numbers of things in sentences. Pure."""

from __future__ import annotations


def count(number: int, thing: str) -> str:
    """Such as: 1 chain, 2 chains, 3 addresses."""
    return f"{number} {thing}{'' if number == 1 else 'es' if thing.endswith('s') else 's'}"
