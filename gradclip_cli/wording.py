"""How numbers are written for people, the same in findings, errors and reports."""

from __future__ import annotations

import math


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


def share(fraction: float) -> str:
    """A fraction in percent, with the digits that matter; never rounded to none or all."""
    percent = 100 * fraction
    if percent in (0, 100):
        return f"{percent:.0f}%"
    return f"{percent:.2g}%" if percent < 10 else f"{min(percent, 99.9):.3g}%"


def span(first: int, last: int | None = None) -> str:
    """Steps from first to last, both of them in: 412–430, or 412 alone."""
    return f"{first:,}" if last is None or last == first else f"{first:,}–{last:,}"
