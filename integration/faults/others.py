"""What other programs do to our tables, with nft. Each does it once and returns the seconds until all was right again."""

from __future__ import annotations

from integration.faults.stage import NUMBERS, PORT, PROBED, Stage, by_hand

_KEY = f"{PROBED} . tcp . {PORT}"


def flush_ruleset(stage: Stage) -> float:
    return _do(stage, "flush ruleset")


def delete_tables(stage: Stage) -> float:
    return _do(stage, "delete table T4; delete table T6")


def delete_element(stage: Stage) -> float:
    """The one without which the Service that is asked for refuses."""
    return _do(stage, f"delete element T4 {NUMBERS} {{ {_KEY} }}")


def change_element(stage: Stage) -> float:
    """An endpoint leads to where nobody is."""
    return _do(
        stage,
        f"delete element T4 endpoints {{ {_KEY} . 0 }}; "
        f"add element T4 endpoints {{ {_KEY} . 0 : 10.244.1.99 . {PORT} }}",
    )


def flush_chain(stage: Stage) -> float:
    return _do(stage, "flush chain T4 services")


def _do(stage: Stage, commands: str) -> float:
    return stage.right_since(stage.nft(by_hand(commands)))
