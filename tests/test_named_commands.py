"""Commands that the documents name exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
TEXTS: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("examples/**/*.md"))]


def named(pattern: str) -> list[str]:
    """What the documents name so, each once."""
    return sorted({found for text in TEXTS for found in re.findall(pattern, text.read_text())})


@pytest.mark.parametrize("module", named(r"python3? -m ([a-z_]+(?:\.[a-z_]+)*)"))
def test_a_module_that_is_named_can_be_run(module: str) -> None:
    spec = find_spec(module)
    assert spec is not None
    if spec.submodule_search_locations:
        assert find_spec(f"{module}.__main__") is not None
    elif spec.origin and Path(spec.origin).is_relative_to(ROOT):
        assert 'if __name__ == "__main__":' in Path(spec.origin).read_text()


@pytest.mark.parametrize("target", named(r"(?:^|`|    )make ([a-z][a-z-]*)"))
def test_a_target_that_is_named_can_be_made(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
