"""What was given for each field, from a file or from flags, read by the table of fields: values, faults, notes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from proxy import feature_gates
from proxy.config_checks import contradictions
from proxy.config_fields import FIELDS, Field
from proxy.config_file import Note
from proxy.config_values import BadType, BadValue

MODE: Final = "detectLocalMode"
DEFAULT_MODE: Final = "ClusterCIDR"


class Given(NamedTuple):
    """One field's value before it is read. label: what messages call it: the field's path, or "--flag".
    shown: the value in the words of who gave it."""

    field: str
    raw: Any
    label: str
    shown: str
    is_flag: bool = False


class Reading:
    """values: by the fields' paths, without what is unset. Of two for one field, the later one counts."""

    def __init__(self, given: Sequence[Given]) -> None:
        self.values: dict[str, Any] = {}
        self.notes: list[Note] = []
        self.faults: list[str] = []
        """Of what the file says."""
        self.flag_faults: list[str] = []
        self._mode = next((item.raw for item in reversed(given) if item.field == MODE and item.raw), DEFAULT_MODE)
        self._last: dict[str, Given] = {}
        for item in given:
            self._read(item, FIELDS[item.field])
        for name, value in self.values.items():
            self._note(self._last[name], FIELDS[name], value)
        if not self.faults and not self.flag_faults:
            only_flags = all(item.is_flag for item in given)
            (self.flag_faults if only_flags else self.faults).extend(contradictions(self.values, self._label))

    def is_flag(self, name: str) -> bool:
        """Whether a flag gave this field its value."""
        return name in self._last and self._last[name].is_flag

    def _label(self, name: str) -> str:
        return self._last[name].label if name in self._last else name

    def _read(self, item: Given, field: Field) -> None:
        try:
            value = field.parse(item.raw)
        except BadValue as e:
            if self._counts(field) or isinstance(e, BadType):
                self._fault(item, str(e))
            else:
                self.notes.append((item.label, self._other_mode()))  # kube-proxy does not look at it then
            return
        if not (value or field.zero_counts or (item.is_flag and field.zero_counts_in_flag)):
            return
        if field.positive and not value:
            self._fault(item, "must be greater than 0")
            return
        self.values[item.field], self._last[item.field] = value, item

    def _fault(self, item: Given, cause: str) -> None:
        (self.flag_faults if item.is_flag else self.faults).append(f"{item.label} is {item.shown}: {cause}")

    def _note(self, item: Given, field: Field, value: Any) -> None:
        if not self._counts(field) and value:
            self.notes.append((item.label, self._other_mode()))
        if not field.used and value and value not in field.silent:
            self.notes.append((item.label, f"no effect here: {field.about}"))
        if item.field == "featureGates":
            notes = ((f"{item.label}.{gate}", feature_gates.note(gate, on)) for gate, on in value.items())
            self.notes.extend(note for note in notes if note[1])

    def _counts(self, field: Field) -> bool:
        return field.local_mode in ("", self._mode)

    def _other_mode(self) -> str:
        return f"no effect here: detectLocalMode is {self._mode}"
