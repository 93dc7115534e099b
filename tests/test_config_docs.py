"""docs/configuration.md has the tables that the code makes."""

from __future__ import annotations

import pytest

from docs import generate
from proxy.config_fields import FIELDS
from proxy.flags import FLAGS


def test_the_tables_are_current() -> None:
    text = generate.FILE.read_text(encoding="utf-8")
    assert text == generate.current(text), "run: python -m docs.generate"


def test_everything_is_in_it() -> None:
    text = generate.FILE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in FIELDS)
    assert all(f"`--{name}`" in text for name in FLAGS)


def test_a_table_without_its_place() -> None:
    with pytest.raises(ValueError, match="no place for the table fields"):
        generate.current("nothing")
