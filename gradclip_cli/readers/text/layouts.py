"""Lines by layout, and numbers by column: what makes a million log lines cheap.

The *layout* of a line is the line with every digit replaced by 0. Lines of one layout are the same
but for their digits, and their numbers stand in the same places; a log of a million metric lines has
some tens of layouts. So each layout is looked at once, by whatever slow code, and the numbers of all its
lines are then made from columns of digits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.run import Values
from gradclip_cli.readers import numbers

Positions = npt.NDArray[np.int64]
T = TypeVar("T")

MAX_LINE = 1 << 16
"""Bytes. A longer line is data or code, not a line of metrics, and is passed over."""

_CHUNK = 1 << 19
_ZERO, _NEWLINE = 0x30, 0x0A
# Odd multipliers of the hash, drawn anew in each process so that no file can be made to collide.
_MULTIPLIERS = np.frombuffer(os.urandom(MAX_LINE + 8), np.uint64) | np.uint64(1)
# By length modulo 8: which bytes of the last word belong to the line (little-endian).
_TAIL = np.array([(1 << 64) - 1] + [(1 << 8 * k) - 1 for k in range(1, 8)], np.uint64)

_DECIMAL = re.compile(rb"([+-]?)([0,]*)(?:\.(0*))?(?:[eE]([+-]?)(0{1,3}))?([KMBkmb]?)")
_SUFFIX = {b"": 0, b"k": 3, b"m": 6, b"b": 9}
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
# 10**22 is the largest power of ten that a double holds exactly.
_MAX_POWER = 22
# Below this, parsing one by one is cheaper than by column.
_FEW = 12


@dataclass(frozen=True, eq=False, slots=True)
class Lines(Generic[T]):
    """The lines of a text whose layout meant something, in order.

    Attributes:
        layouts: What `describe` returned, once a layout.
        starts: int64, shape (n,): byte offset of each line.
        layout: int32, shape (n,): index into `layouts`.
        num_too_long: How many lines were longer than `MAX_LINE`.
    """

    layouts: list[T]
    starts: Positions
    layout: npt.NDArray[np.int32]
    num_too_long: int


def scan(text: bytes, describe: Callable[[bytes], T | None], fixed: Callable[[T], Sequence[int]]) -> Lines[T]:
    """Sort the lines of a text by layout.

    Args:
        describe: Gets one line of each layout (without its line feed) and says what it is; None drops all
            lines of that layout. What it says may depend on the digits that `fixed` names and on no others.
        fixed: Offsets of the digits in a line that belong to its words (`loss_2`), so that lines that
            differ there have layouts of their own.
    """
    layouts: list[T] = []
    widths: list[int] = []
    index: dict[int, int] = {}
    starts: list[Positions] = []
    kinds: list[npt.NDArray[np.int32]] = []
    num_too_long = 0
    hash_lines = _Hasher()
    begin = 0
    while begin < len(text):
        end = len(text) if len(text) - begin <= _CHUNK else text.rfind(b"\n", begin, begin + _CHUNK) + 1
        if end == 0:
            num_too_long += 1
            end = text.find(b"\n", begin + _CHUNK) + 1
            begin = end or len(text)
            continue
        at, lengths, hashes = hash_lines(text, begin, end)
        num_too_long += int(np.count_nonzero(lengths > MAX_LINE))
        distinct, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        ids = np.full(len(distinct), -1, np.int32)
        # In the order of the text, so that keys come in the order in which they were first printed.
        for i in np.argsort(first).tolist():
            key, j = int(distinct[i]), int(first[i])
            known = index.get(key)
            if known is None and 0 < lengths[j] <= MAX_LINE:
                low = begin + int(at[j])
                what = describe(text[low : low + int(lengths[j])])
                if what is not None:
                    known = index[key] = len(layouts)
                    layouts.append(what)
                    widths.append(int(lengths[j]))
            if known is not None:
                ids[i] = known
        kind = ids[inverse]
        useful = np.flatnonzero(kind >= 0)
        starts.append(at[useful] + begin)
        kinds.append(kind[useful])
        begin = end
    if not starts:
        return Lines(layouts, np.empty(0, np.int64), np.empty(0, np.int32), num_too_long)
    found = Lines(layouts, np.concatenate(starts), np.concatenate(kinds), num_too_long)
    for i, width in enumerate(widths):
        if columns := fixed(layouts[i]):
            _split(text, found, i, width, columns, describe)
    return found


def _split(text: bytes, lines: Lines[T], kind: int, width: int, columns: Sequence[int], describe: Callable[[bytes], T | None]) -> None:
    """Give the lines of one layout that differ in some digits layouts of their own."""
    own = np.flatnonzero(lines.layout == kind)
    digits = np.frombuffer(text, np.uint8)[lines.starts[own][:, None] + np.array(columns)]
    _, first, inverse = np.unique(digits.view(f"S{len(columns)}").ravel(), return_index=True, return_inverse=True)
    for i, j in enumerate(first.tolist()):
        low = int(lines.starts[own[j]])
        # The first line of all is the one that was described.
        if j > 0 and (what := describe(text[low : low + width])) is not None:
            lines.layout[own[inverse == i]] = len(lines.layouts)
            lines.layouts.append(what)


class _Hasher:
    """The lines in a part of a text: where they begin, how long they are, and what their layouts hash to.

    Buffers are kept from part to part: fresh memory would cost more than what is done in it.
    """

    def __init__(self) -> None:
        # Zeros behind, so that the last word of the last line is inside.
        self._masked = np.zeros(_CHUNK + 9, np.uint8)
        self._digits = np.empty(_CHUNK, np.uint8)
        self._flags = np.empty(_CHUNK + 1, bool)

    def __call__(self, text: bytes, begin: int, end: int) -> tuple[Positions, Positions, npt.NDArray[np.uint64]]:
        """Offset (from `begin`), length and hash of each line.

        The hash is the sum of the line's 8-byte words, each mixed and multiplied by its own random number; lines
        that are empty or longer than `MAX_LINE` have hash 0.
        """
        n = end - begin
        raw = np.frombuffer(text, np.uint8, n, begin)
        masked, digits, flags = self._masked, self._digits[:n], self._flags[: n + 1]
        np.subtract(raw, np.uint8(_ZERO), out=digits)
        np.less(digits, np.uint8(10), out=flags[:n])
        digits *= flags[:n].view(np.uint8)
        np.subtract(raw, digits, out=masked[:n])
        masked[n:] = 0
        if raw[-1] != _NEWLINE:
            masked[n] = _NEWLINE
        np.equal(masked[: n + 1], np.uint8(_NEWLINE), out=flags)
        stops = np.flatnonzero(flags)
        starts = np.concatenate([[0], stops[:-1] + 1])
        lengths = stops - starts
        num_words = (lengths + 7) >> 3
        num_words[lengths > MAX_LINE] = 0
        hashes = np.zeros(len(starts), np.uint64)
        order = np.argsort(num_words.astype(np.uint16), kind="stable")
        in_order = num_words[order]
        bounds = np.flatnonzero(np.diff(in_order, prepend=-1, append=-1)).tolist()
        for low, high in zip(bounds[:-1], bounds[1:], strict=True):
            n = int(in_order[low])
            if n == 0:
                continue
            lines = order[low:high]
            words = _windows(masked, starts[lines], 8 * n).view(np.uint64)
            words[:, -1] &= _TAIL[lengths[lines] & 7]
            # Without this a difference in the high bytes of two words would survive in the high bits only.
            words ^= words >> np.uint64(31)
            hashes[lines] = words @ _MULTIPLIERS[:n]
        return starts, lengths, hashes


def _windows(buffer: bytes | npt.NDArray[np.uint8], at: Positions, width: int) -> npt.NDArray[np.uint8]:
    """The bytes that begin at each offset, uint8, shape (n, width)."""
    # One void a window: numpy copies these as a whole, where it copies rows of bytes one by one.
    windows: npt.NDArray[np.void] = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))
    return windows[at].view(np.uint8).reshape(-1, width)


def pattern_of(value: str) -> bytes:
    """A printed number with every digit as 0."""
    return value.encode("latin-1").translate(_DIGITS_TO_ZERO)


def values_at(text: bytes, at: Positions, pattern: bytes) -> Values:
    """Numbers printed with one pattern.

    Args:
        at: int64, shape (n,): byte offsets where they begin.
        pattern: See `pattern_of`.

    Returns:
        float64, shape (n,): as `float` reads them (of more than 15 digits, to the last bit but one where the
        platform's long double is no wider than a double).
    """
    width = len(pattern)
    if b"0" not in pattern:
        return np.full(len(at), _parse(pattern))
    m = _DECIMAL.fullmatch(pattern)
    if m is None or len(at) < _FEW or m[2].count(b"0") + len(m[3] or b"") > 18:
        return np.array([_parse(text[i : i + width]) for i in at.tolist()])
    rows = _windows(text, at, width)
    mantissa = _integer(rows, [j for j in range(m.start(2), m.end(3) if m[3] else m.end(2)) if pattern[j] == _ZERO])
    point = _SUFFIX[m[6].lower()] - len(m[3] or b"")
    if not m[5]:
        values = _scaled(mantissa, point)
    else:
        exponent = _integer(rows, range(m.start(5), m.end(5)))
        if m[4] == b"-":
            np.negative(exponent, out=exponent)
        exponent += point
        values = np.empty(len(at))
        for power in np.flatnonzero(np.bincount(exponent - exponent.min())) + exponent.min():
            some = exponent == power
            values[some] = _scaled(mantissa[some], int(power))
    if m[1] == b"-":
        np.negative(values, out=values)
    if m[5]:
        for i in np.flatnonzero(np.abs(exponent) > _MAX_POWER).tolist():
            values[i] = _parse(text[at[i] : at[i] + width])
    return values


def _integer(rows: npt.NDArray[np.uint8], columns: Sequence[int]) -> Positions:
    """The number whose digits stand in some columns, int64, shape (n,)."""
    total: npt.NDArray[np.int32 | np.int64] = np.zeros(len(rows), np.int32 if len(columns) < 10 else np.int64)
    for j in columns:
        total *= 10
        total += rows[:, j] - np.uint8(_ZERO)
    return total.astype(np.int64, copy=False)


def _scaled(mantissa: Positions, power: int) -> Values:
    """mantissa * 10**power, float64."""
    factor = 10.0 ** min(abs(power), _MAX_POWER)
    # Where both are exact the one rounding is the right one (Clinger 1990).
    values = (mantissa / factor if power < 0 else mantissa * factor).astype(np.float64, copy=False)
    wide = mantissa >= 1 << 53
    if wide.any():
        # The longer mantissa of the 80-bit format keeps these exact too.
        long = mantissa[wide].astype(np.longdouble)
        values[wide] = (long / factor if power < 0 else long * factor).astype(np.float64)
    return values


def _parse(value: bytes) -> float:
    number = numbers.parse(value.decode("latin-1"))
    return np.nan if number is None else number.value
