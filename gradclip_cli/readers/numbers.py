"""Numbers as training logs print them."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_SUFFIX = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
# "nan.0" is how one progress bar prints a tensor's nan; "1.#QNAN" and "-1.#IND" are old Windows runtimes'.
# "#NUM!" and "#DIV/0!" are spreadsheets'.
_NONFINITE = re.compile(r"([+-]?)(?:(nan|na\.n|1\.#qnan|1\.#ind|#num!|#div/0!)|(inf|infinity|1\.#inf|\u221e))(?:\.0*)?(?:\(ind\))?", re.I)
_FINITE = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
# A tensor or an array of one number as Python prints it: "tensor(2.5, device='cuda:0', grad_fn=<AddBackward0>)".
_WRAPPED = re.compile(
    r"(?:torch\.)?(?:tensor|Tensor|(?:np\.|numpy\.|jnp\.)?(?:array|Array|b?float\d+|int\d+))"
    r"\(\[?\s*([^\s,()\[\]]+)\s*\]?(?:,\s*\w+=[^,]*)*\)"
)
_MAX_WRAPPED = 200
_ABSENT = re.compile(r"(?:n/?a|n\.a\.|<na>|#n/a|none|null|nil|undefined|[-\u2013\u2014]+|\.)?", re.I)


class Number(NamedTuple):
    """A parsed number.

    Attributes:
        value: May be nan or inf.
        rounded: It was printed so short that neighbouring integers collide ("1K", "1.08e+04").
        total: The second number of "10/438".
    """

    value: float
    rounded: bool = False
    total: float | None = None


def parse(text: str) -> Number | None:
    """A number from one printed value, or None where it is something else.

    Understands nan and inf in any spelling, thousands separators, 1K / 2.5M, "10/438", "33%", "tensor(2.5)" and
    numbers that were printed as strings.
    """
    text = text.strip().strip("'\"").strip()
    if text[-1:] == ")" and len(text) <= _MAX_WRAPPED and (wrapped := _WRAPPED.fullmatch(text)):
        text = wrapped[1]
    if not text or len(text) > 64:
        return None
    if _FINITE.fullmatch(text):
        return Number(float(text), rounded="e" in text.lower() and float(text) >= 1000)
    if m := _NONFINITE.fullmatch(text):
        if m[2]:
            return Number(math.nan)
        return Number(-math.inf if m[1] == "-" else math.inf)
    if _THOUSANDS.fullmatch(text):
        return Number(float(text.replace(",", "")))
    if text[-1] == "%" and (inner := parse(text[:-1])) is not None:
        return Number(inner.value / 100.0)
    if text[-1].lower() in _SUFFIX and _FINITE.fullmatch(text[:-1]):
        return Number(float(text[:-1]) * _SUFFIX[text[-1].lower()], rounded=True)
    if "/" in text:
        first, _, second = text.partition("/")
        if (a := parse(first)) is not None and (b := parse(second)) is not None:
            return Number(a.value, a.rounded, b.value)
    return None


def is_absent(text: str) -> bool:
    """Whether a text says that there is no value ("", "N/A", "None", "-")."""
    return len(text) < 32 and _ABSENT.fullmatch(text.strip().strip("'\"").strip()) is not None
