"""Durations as Go writes and reads them (time.Duration), in seconds: "1h0m0s", "1.5h", "300ms"."""

from __future__ import annotations

import re
from typing import Final

# Both signs of "micro" (U+00B5 and U+03BC), as in Go's time.ParseDuration.
_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_DURATION: Final = re.compile(r"(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+")
_DURATION_PART: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?([a-zµμ]+)")


def parse_duration(text: str) -> float:
    """Seconds of a Go duration, such as "1h0m0s", "1.5h", "300ms", "-2s" or "0". Raises ValueError."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if digits == "0":
        return 0.0
    if not _DURATION.fullmatch(digits):
        raise ValueError(f"not a duration: {text!r}")
    nanoseconds = 0
    for whole, fraction, unit in _DURATION_PART.findall(digits):
        nanoseconds += int(whole or 0) * _UNITS[unit] + int(fraction or 0) * _UNITS[unit] // 10 ** len(fraction)
    if nanoseconds >= 2**63:
        raise ValueError(f"longer than 292 years: {text!r}")
    return sign * nanoseconds / 10**9


def show_duration(seconds: float) -> str:
    """As Go writes it: "1h0m0s", "1.5s", "300ms", "0s"."""
    numerator, denominator = abs(seconds).as_integer_ratio()
    nanoseconds = (2 * numerator * 10**9 + denominator) // (2 * denominator)
    sign = "-" if seconds < 0 else ""
    if nanoseconds < 10**9:
        unit = next((unit for unit in ("ms", "µs", "ns") if nanoseconds >= _UNITS[unit]), "s")
        return f"{sign}{_decimal(nanoseconds, _UNITS[unit])}{unit}"
    minutes, rest = divmod(nanoseconds, _UNITS["m"])
    text = f"{_decimal(rest, 10**9)}s"
    if minutes:
        text = f"{minutes % 60}m{text}"
    if minutes >= 60:
        text = f"{minutes // 60}h{text}"
    return sign + text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = f"{rest:0{len(str(unit)) - 1}}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
