"""Whether what is in a table is what was wanted, and what takes it away if not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rules.expressions import Expression
from rules.objects import Set, comment_text
from rules.transaction import AddElement, DeleteElement

Found = tuple[bytes, str]
"""An element's data (of a range: its last key) and comment, as rules.dump reads them."""


def is_same_element(wanted: AddElement, there: Found) -> bool:
    comment = wanted.comment
    return there[0] == (wanted.data or wanted.end) and (there[1] == comment or there[1] == comment_text(comment))


def deletion(set_: Set, key: bytes, there: Found) -> DeleteElement:
    """Of the element that is there."""
    return DeleteElement(set_, key, there[0] if set_.interval else b"")


def are_same_rules(chain: str, wanted: Sequence[Sequence[Expression]], found: Sequence[Sequence[Expression]]) -> bool:
    """Expressions of each rule. In chains that get a rule with each new group, the first one only is bound to its
    place, the others may have any order."""
    if list(wanted) == list(found):
        return True
    if not chain.endswith("-special"):
        return False
    return wanted[:1] == found[:1] and sorted(map(repr, wanted)) == sorted(map(repr, found))
