"""An answer for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from proxy.explain.answer import Answer, Outcome

_MOST = 20
"""Endpoints of one kind that are listed."""


def text(answer: Answer) -> str:
    lines = [f"{_source(answer)} -> {answer.target}: {_service(answer)}"]
    lines += _block("leads to", _outcome(answer.outcome))
    lines += _block("why", answer.policy)
    lines += _block("not to", _some([f"{each.endpoint:<24} {each.why}" for each in answer.excluded]))
    lines += _block(
        "also", [f"Service {name} claims this address, and is younger: it has to wait" for name in answer.also]
    )
    lines += _block("through", [", ".join(answer.outcome.path)] if answer.outcome.path else [])
    if answer.live is not None:
        lines += _block("kernel", answer.differs or ["does the same"])
    return "\n".join(lines) + "\n"


def _source(answer: Answer) -> str:
    return answer.source if answer.source in ("outside", "node") else f"{answer.source} ({answer.kind})"


def _service(answer: Answer) -> str:
    return f"Service {answer.service}, its {answer.address}" if answer.service else "no Service"


def _outcome(outcome: Outcome) -> Iterator[str]:
    endpoints = []
    for each in outcome.endpoints:
        where = f"on {each.node}" if each.node else ""
        more = ", ".join(filter(None, [where, "masqueraded" if each.masqueraded else ""]))
        endpoints.append(f"{each.endpoint:<24} {each.chance:>6.1%}  {more}".rstrip())
    yield from _some(endpoints)
    for name, chance in (("refused", outcome.refused), ("dropped", outcome.dropped)):
        if chance:
            yield name if chance == 1.0 else f"{name} {chance:.1%}"
    if outcome.untouched:
        yield "where it was sent: no rule touches it"


def _some(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"and {len(lines) - _MOST} more (-o json has them)"]


def _block(title: str, lines: Iterator[str] | list[str] | tuple[str, ...]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"  {title if not number else '':<9} {line}"
