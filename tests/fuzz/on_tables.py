"""A table of ours that was damaged in every way that can be told: it is mended exactly, or has to be replaced."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

from proxy.agent import Agent
from proxy.events import Inbox
from proxy.settings import Settings
from proxy.state import State
from rules.adopt import adopt
from rules.dump import ChainState, SetState, TableState
from rules.expressions import Compare, Expression, Immediate, Lookup, Unknown, Verdict
from rules.fake import FakeKernel
from rules.layout import LAYOUTS, Options
from rules.objects import Family
from tests.fuzz.hunt import Target
from tests.fuzz.scene import NODE, events
from tests.test_histories import content, without_empty

NAMES: Final = (
    "theirs", "endpoints", "endpoints2", "sticky-3-for-10s", "sticky-4-for-60s", "sticky-0-for-60s", "sticky-4-for-0s", "hashed-0",
    "hashed-1", "hashed-2", "hashed-3", "hashed-65536", "local-hashed-4", "nodeport-local-hashed-8", "nodeport-sticky-16-for-3600s",
    "sticky-04-for-60s", "sticky-4-for-060s", "hashed-4611686018427387904", "sticky-8-for-99999999999999999999s", "turn-0", "turn-7",
    "turn-01", "turn-99999999999999999999", "local-turn-3", "nodeport-turn-2", "nodeport-local-turn-1", "turn-\u0663", "hashed-\u0664",
    "turn-", "x" * 255, "", "\ufffd", "cluster-ip-ports", "services-3", "pick-2", "pick-3",
)  # fmt: skip
EXPRESSIONS: Final[tuple[Expression, ...]] = (
    Unknown("counter", b""),
    Unknown("", b"\0"),
    Lookup("endpoints"),
    Lookup("nowhere", register=0),
    Compare(0, b""),
    Immediate((Verdict.DROP, "")),
    Immediate((Verdict.JUMP, "nowhere")),
)


_FIELDS: Final = {field.name for field in dataclasses.fields(SetState)}


class Step(NamedTuple):
    """One act of damage: which kind, and three numbers that choose what it does."""

    kind: int
    where: int
    which: int
    value: int


def damage(table: TableState, steps: Sequence[Step]) -> None:
    """Do it."""
    for step in steps:
        _KINDS[step.kind % len(_KINDS)](table, step)


def is_structural(step: Step) -> bool:
    """Whether it may change more than elements and rules."""
    return step.kind % len(_KINDS) >= KINDS_OF_MENDABLE


def copied(table: TableState) -> TableState:
    sets = {name: replace(set_, elements=dict(set_.elements)) for name, set_ in table.sets.items()}
    chains = {name: replace(chain, rules=list(chain.rules)) for name, chain in table.chains.items()}
    return replace(table, sets=sets, chains=chains)


def _set(table: TableState, step: Step) -> SetState:
    """One of the table's, mostly one that has elements."""
    sets = list(table.sets.values())
    filled = [set_ for set_ in sets if set_.elements]
    listed = filled if filled and step.value % 8 else sets
    return listed[step.where % len(listed)] if listed else SetState(0, 0)


def _key(set_: SetState, step: Step) -> bytes:
    keys = list(set_.elements)
    return keys[step.which % len(keys)] if keys else b""


def _changed(value: bytes, step: Step) -> bytes:
    """The same size, another content."""
    if not value:
        return value
    at = step.value % len(value)
    return value[:at] + bytes([value[at] ^ (1 + step.value % 255)]) + value[at + 1 :]


def _drop_element(table: TableState, step: Step) -> None:
    set_ = _set(table, step)
    set_.elements.pop(_key(set_, step), None)


def _move_element(table: TableState, step: Step) -> None:
    set_ = _set(table, step)
    key = _key(set_, step)
    if key in set_.elements:
        set_.elements[_changed(key, step)] = set_.elements[key] if step.value % 2 else set_.elements.pop(key)


def _change_data(table: TableState, step: Step) -> None:
    set_ = _set(table, step)
    key = _key(set_, step)
    if key in set_.elements:
        data, comment = set_.elements[key]
        set_.elements[key] = _changed(data, step), comment


def _swap_data(table: TableState, step: Step) -> None:
    """With an element near by, mostly one of the same service port; or both have the same then."""
    set_ = _set(table, step)
    one, other = _key(set_, step), _key(set_, step._replace(which=step.which + 1 + step.value % 4))
    if one and other:
        first, second = set_.elements[one], set_.elements[other]
        set_.elements[one], set_.elements[other] = second, first if step.value % 8 < 4 else second


def _change_comment(table: TableState, step: Step) -> None:
    set_ = _set(table, step)
    key = _key(set_, step)
    if key in set_.elements:
        set_.elements[key] = set_.elements[key][0], ("", "x", "\ufffd", "default/a:80" * 20)[step.value % 4]


def _copy_elements(table: TableState, step: Step) -> None:
    """From another set whose keys and data are alike."""
    set_ = _set(table, step)
    for other in table.sets.values():
        if other is not set_ and other.is_like(set_) and other.elements:
            key = _key(other, step)
            set_.elements[key] = other.elements[key]


def _rules(table: TableState, step: Step) -> list[tuple[Expression, ...]]:
    chains = [chain for chain in table.chains.values() if chain.rules or not step.value % 8]
    return chains[step.where % len(chains)].rules if chains else []


def _drop_rule(table: TableState, step: Step) -> None:
    rules = _rules(table, step)
    if rules:
        del rules[step.which % len(rules)]


def _repeat_rule(table: TableState, step: Step) -> None:
    rules = _rules(table, step)
    if rules:
        rules.insert(step.value % (len(rules) + 1), rules[step.which % len(rules)])


def _swap_rules(table: TableState, step: Step) -> None:
    rules = _rules(table, step)
    if rules:
        one, other = step.which % len(rules), step.value % len(rules)
        rules[one], rules[other] = rules[other], rules[one]


def _foreign_rule(table: TableState, step: Step) -> None:
    rules, others = _rules(table, step), _rules(table, step._replace(where=step.value))
    if others:
        rules.append(others[step.which % len(others)])


def _change_rule(table: TableState, step: Step) -> None:
    rules = _rules(table, step)
    if rules:
        at = step.which % len(rules)
        whole = list(rules[at])
        place = step.value % (len(whole) + 1)
        whole[place : place + step.value % 3] = [EXPRESSIONS[step.value % len(EXPRESSIONS)]]
        rules[at] = tuple(whole)


def _change_field(table: TableState, step: Step) -> None:
    """A number in an expression."""
    rules = _rules(table, step)
    if rules:
        at = step.which % len(rules)
        whole = list(rules[at])
        place = step.value % len(whole)
        numbers = [f.name for f in dataclasses.fields(whole[place]) if isinstance(getattr(whole[place], f.name), int)]
        if numbers:
            whole[place] = replace(whole[place], **{numbers[step.value % len(numbers)]: step.value})
            rules[at] = tuple(whole)


def _resize_set(table: TableState, step: Step) -> None:
    """Keys, or data, of another size than ours: the kernel lets a set of the same types have any."""
    set_ = _set(table, step)
    of_data = step.value % 2
    field = ("key_size", "data_size")[of_data]
    if field in _FIELDS:
        setattr(set_, field, getattr(set_, field) + 4)
    resized = {
        key + bytes(4 * (not of_data)): (data + bytes(4 * of_data), c) for key, (data, c) in set_.elements.items()
    }
    set_.elements = resized


def _empty_set(table: TableState, step: Step) -> None:
    _set(table, step).elements.clear()


def _drop_set(table: TableState, step: Step) -> None:
    names = list(table.sets)
    if names:
        del table.sets[names[step.where % len(names)]]


def _add_set(table: TableState, step: Step) -> None:
    like = _set(table, step)
    name = NAMES[step.which % len(NAMES)]
    table.sets.setdefault(
        name, SetState(like.type, like.data_type, like.flags, dict(like.elements) if step.value % 2 else {})
    )


def _change_set(table: TableState, step: Step) -> None:
    set_ = _set(table, step)
    field = ("type", "data_type", "flags")[step.which % 3]
    setattr(set_, field, getattr(set_, field) ^ (1 << step.value % 32))


def _drop_chain(table: TableState, step: Step) -> None:
    names = list(table.chains)
    if names:
        del table.chains[names[step.where % len(names)]]


def _add_chain(table: TableState, step: Step) -> None:
    rules = list(_rules(table, step)) if step.value % 2 else []
    table.chains.setdefault(NAMES[step.which % len(NAMES)], ChainState(None, rules))


def _change_hook(table: TableState, step: Step) -> None:
    """A base chain that is none any more, or stands elsewhere; or another one that is one now."""
    chains = list(table.chains.values())
    hooks = [chain.hook for chain in chains if chain.hook]
    if hooks:
        number, priority, *rest = hooks[step.which % len(hooks)]
        found = (None, (number, priority + 1, *rest), (number + 1, priority, *rest), hooks[0])[step.value % 4]
        chains[step.where % len(chains)].hook = found  # type: ignore[assignment]


def _change_flags(table: TableState, step: Step) -> None:
    table.flags ^= 1 << step.value % 3


_KINDS: Final = (
    _drop_element,
    _move_element,
    _change_data,
    _swap_data,
    _change_comment,
    _copy_elements,
    _empty_set,
    _drop_rule,
    _repeat_rule,
    _swap_rules,
    _foreign_rule,
    _change_rule,
    _change_field,
    _resize_set,
    _drop_set,
    _add_set,
    _change_set,
    _drop_chain,
    _add_chain,
    _change_hook,
    _change_flags,
)
KINDS_OF_MENDABLE: Final = _KINDS.index(_resize_set)
"""The first so many kinds change elements and rules only."""

# -- Whether it is mended ----------------------------------------------------------------------------------------------


class World(NamedTuple):
    """A cluster's tables as an agent made them, and what is known of the cluster."""

    state: State
    tables: dict[Family, TableState]


@cache
def world() -> World:
    state, kernel = State(NODE), FakeKernel()
    for event in events():
        state.apply(event)
    Agent(State(NODE), kernel, Inbox()).handle(events())
    return World(state, {family: _table(kernel, family) for family in Family})


def _table(kernel: FakeKernel, family: Family) -> TableState:
    table = kernel.dump(LAYOUTS[family].table)
    assert table is not None
    return table


def check(made: World, family: Family, steps: Sequence[Step]) -> bool:
    """Damage the table and take it over. Whether it could be."""
    found = copied(made.tables[family])
    damage(found, steps)
    wanted = {key: port for key, port in made.state.everything().items() if port and port.family is family}
    addresses = Settings().nodeport_ips(made.state.node, ())[family]
    arguments = Options(), made.state.service_cidrs, wanted, addresses
    kernel = FakeKernel()
    kernel._tables[family, LAYOUTS[family].table.name] = found
    before = copied(found)
    taken = adopt(family, found, *arguments)
    assert found == before, "adopt is pure"
    if taken is None:
        assert any(map(is_structural, steps)), "differences are mended, not replaced"
        return False
    assert taken.differences and (taken.operations or not taken.differences.total)
    assert taken.differences.total or not taken.operations or any(map(is_structural, steps))
    kernel.commit(taken.operations)
    mended = _table(kernel, family)
    assert _content(family, mended) == _content(family, made.tables[family])
    _has_same_rules(mended, made.tables[family])
    again = adopt(family, mended, *arguments)
    assert again and not again.operations
    kernel.commit(taken.programmed.plan(dict.fromkeys(wanted), frozenset()).operations)
    left = _table(kernel, family).sets
    there = {
        (set_.name, key) for set_ in taken.programmed.sets() if not set_.dynamic for key in left[set_.name].elements
    }
    assert there == LAYOUTS[family].fixed.keys()
    return True


def _content(family: Family, table: TableState) -> object:
    """Without what packets put there, which nobody mends."""
    kept = copied(table)
    for set_ in LAYOUTS[family].sets:
        if set_.dynamic:
            kept.sets[set_.name].elements.clear()
    return without_empty(content(kept))


def _has_same_rules(mended: TableState, healthy: TableState) -> None:
    """In the chains that every table has; those of groups may have more, for groups that are empty."""
    for name, chain in healthy.chains.items():
        if "turn-" in name:
            continue
        found = mended.chains[name]
        assert found.hook == chain.hook
        if name.endswith("-special"):
            assert set(chain.rules) <= set(found.rules)
        else:
            assert found.rules == chain.rules, name


_STEP: Final = struct.Struct("<BHHI")


def _steps(data: bytes) -> Iterator[Step]:
    for row in _STEP.iter_unpack(data[: len(data) // _STEP.size * _STEP.size][: _STEP.size * 50]):
        yield Step(*row)


def _check(data: bytes) -> None:
    family = list(Family)[data[0] % 2] if data else Family.IPV4
    check(world(), family, list(_steps(data[1:])))


def _programs() -> list[bytes]:
    rows = [b"".join(_STEP.pack(kind, n * 7, n * 31, n * 12345) for n in range(3)) for kind in range(len(_KINDS))]
    return [bytes([number]) + row for number, row in enumerate(rows)]


TARGETS: Final = (Target("adopt", _programs, _check, inputs=60),)
