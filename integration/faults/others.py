"""What other programs do to our tables, with nft. Each does it once and returns the seconds until all was right again."""

from __future__ import annotations

import time
from typing import Final

from integration.faults.load import Load
from integration.faults.stage import NUMBERS, PORT, PROBED, Stage, Wrong, by_hand

FLUSHES: Final = 30
FLUSH_EVERY: Final = 0.03
CHANGE_EVERY: Final = 0.01

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


def flush_again_and_again(stage: Stage) -> float:
    """By somebody who does not give in, while endpoints change all the time."""
    with Load(stage, CHANGE_EVERY) as load:
        for _ in range(FLUSHES):
            flushed = stage.nft("flush ruleset")
            if stage.expects_standby and not stage.has_standby():
                raise Wrong("the standby was given up")
            time.sleep(FLUSH_EVERY)
    seconds = stage.right_since(max(flushed, load.last))
    return 0.0 if stage.is_owned() else seconds  # then it was the last change's


def _do(stage: Stage, commands: str) -> float:
    return stage.right_since(stage.nft(by_hand(commands)))
