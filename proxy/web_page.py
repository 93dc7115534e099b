"""Web pages of one piece: a package's page.html with its style and script inside, and no way to anything else."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from string import Template
from typing import NamedTuple


class Parts(NamedTuple):
    """page: has $style and $script, and what else its package gives it. policy: of Content-Security-Policy."""

    page: Template
    style: str
    script: str
    policy: str


def parts(package: str, *more: str) -> Parts:
    """Of page.html, page.css and page.js. The style begins with what all our pages have in common. more: the policy's
    directives for what this page needs beside its own style and script."""
    page, style, script = (_file(package, f"page.{kind}") for kind in ("html", "css", "js"))
    style = _file("proxy", "page.css") + style
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}",
        *more,
        "img-src data:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    )
    return Parts(Template(page), style, script, "; ".join(policy))


def _file(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
