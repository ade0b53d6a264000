"""How numbers are written for people, the same in findings, errors and reports."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence


def number(value: float, digits: int = 3) -> str:
    """So many significant digits; whole numbers in full with thousands separators."""
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    if 1e-4 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def times(ratio: float) -> str:
    """A ratio as people say it: 57×, 3.4×."""
    return f"{number(ratio, 2) if ratio < 10 else number(round(ratio) if ratio < 1e6 else ratio)}×"


def count(n: int, noun: str) -> str:
    """The number with its noun, which takes an s in the plural."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def ordinal(n: int) -> str:
    """ "1st", "2nd", "11th"."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def share(fraction: float) -> str:
    """A fraction in percent, with the digits that matter; never rounded to none or all."""
    percent = 100 * fraction
    if percent in (0, 100):
        return f"{percent:.0f}%"
    return f"{percent:.2g}%" if percent < 10 else f"{min(percent, 99.9):.3g}%"


def span(first: int, last: int | None = None) -> str:
    """Steps from first to last, both of them in: 412–430, or 412 alone."""
    return f"{first:,}" if last is None or last == first else f"{first:,}–{last:,}"


def cut(lines: Sequence[str], most: int = 12) -> list[str]:
    """The first of a long list, with how many more there are; the reports for programs hold them all."""
    return list(lines) if len(lines) <= most else [*lines[:most], f"+{len(lines) - most:,} more: --format json lists them all"]


# A rule, or a check of the device battery.
NUMBERED = re.compile(r"[A-Z]+[0-9]{3}")


def id_ranges(ids: Sequence[str]) -> str:
    """Ids in a row, three and more that follow one another as a range: "GC101, GC103–GC107"."""
    parts: list[list[str]] = []
    for i in ids:
        if parts and NUMBERED.fullmatch(i) and parts[-1][-1] == f"{i[:-3]}{int(i[-3:]) - 1:03}":
            parts[-1].append(i)
        else:
            parts.append([i])
    return ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 2 else ", ".join(part) for part in parts)
