"""Whether what several ranks held of the same part of a tensor is the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradclip_cli.clipping.blocks import Block, Reader
from gradclip_cli.clipping.dtypes import Decoder, Dtype, Floats
from gradclip_cli.clipping.norms import BLOCK, PowerSum, power_sum, ratio, total
from gradclip_cli.clipping.ranks import Ranks
from gradclip_cli.clipping.store import Copy, Piece
from gradclip_cli.errors import GradclipError

MOST_ROUNDING = 1e-2
"""Sums of bfloat16 in another order differ by less of a tensor's norm; gradients of other batches by far more."""

_Pair = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two ranks' copies of a tensor differ.

    Attributes:
        fraction: The norm of the difference by that of the lower rank's copy; inf where only one of them is finite, or zero.
        ranks: Which two.
    """

    name: str
    fraction: float
    ranks: tuple[int, int]

    def __str__(self) -> str:
        how_far = f"{self.fraction:.2g} of its norm" if math.isfinite(self.fraction) else "all of it"
        return f"{self.name} of ranks {self.ranks[0]} and {self.ranks[1]}, by {how_far}"


def largest_difference(copies: Sequence[Copy], ranks: Ranks) -> Difference | None:
    """Read all copies and compare them; None where they are the same. The ranks share the work, and all get the result.

    Raises:
        GradclipError: A file cannot be read to its end.
    """
    differ = _shared(copies, range(len(copies)), 1, ranks, _differs)
    changed = {(copies[i].name, copies[i].ranks) for i in np.flatnonzero(differ).tolist()}
    # A tensor is judged as a whole: of a small part of it rounding may be much.
    suspects = [i for i, c in enumerate(copies) if (c.name, c.ranks) in changed]
    sums = _shared(copies, suspects, 4, ranks, _sums)
    parts: dict[tuple[str, tuple[int, int]], list[int]] = {}
    for i in suspects:
        parts.setdefault((copies[i].name, copies[i].ranks), []).append(i)
    found = [Difference(name, _fraction(sums[numbers]), pair) for (name, pair), numbers in parts.items()]
    return max((d for d in found if d.fraction), key=lambda d: d.fraction, default=None)


def _shared(
    copies: Sequence[Copy],
    numbers: Sequence[int],
    columns: int,
    ranks: Ranks,
    measure: Callable[[Copy, Iterator[_Pair]], float | tuple[float, ...]],
) -> Floats:
    """What is measured of some of the copies, shape (len(copies), columns)."""
    table = np.zeros((len(copies), columns))
    error = None
    try:
        with Reader() as kept, Reader() as other:
            for i in numbers[ranks.rank :: ranks.world_size]:
                table[i] = measure(copies[i], _read(copies[i], kept, other))
    except GradclipError as e:
        error = e
    ranks.raise_any(error)
    ranks.join(table)
    return table


def _read(copy: Copy, kept: Reader, other: Reader) -> Iterator[_Pair]:
    """The bytes of both, block by block."""
    for start in range(0, copy.kept.numel, BLOCK):
        num = min(BLOCK, copy.kept.numel - start)
        yield _block(copy.kept, copy.dtype, start, num, kept), _block(copy.other, copy.dtype, start, num, other)


def _block(piece: Piece, dtype: Dtype, start: int, num: int, reader: Reader) -> npt.NDArray[np.uint8]:
    stored = np.empty(num * dtype.num_bytes, np.uint8)
    reader.read(Block(0, piece, dtype, start, num), stored)
    return stored


def _differs(copy: Copy, blocks: Iterator[_Pair]) -> bool:
    return not all(np.array_equal(a, b) for a, b in blocks)


def _sums(copy: Copy, blocks: Iterator[_Pair]) -> tuple[float, int, float, int]:
    """The squares of the difference and of the copy that is kept, added up; mantissa and exponent of each."""
    differences, squares = [], []
    for pair in blocks:
        a, b = (_values(stored, copy.dtype) for stored in pair)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, a - b)
        apart[np.isnan(apart)] = np.inf
        a[~np.isfinite(a)] = 0.0
        scratch = np.empty(len(a))
        differences.append(power_sum(apart, 2.0, scratch))
        squares.append(power_sum(a, 2.0, scratch))
    difference, square = total(differences, 2.0), total(squares, 2.0)
    return difference.mantissa, difference.exponent, square.mantissa, square.exponent


def _values(stored: npt.NDArray[np.uint8], dtype: Dtype) -> Floats:
    """With their signs, which a norm does not need; of complex numbers both parts, one behind the other."""
    plain = {"float16": "<f2", "complex64": "<f4", "complex128": "<f8"}.get(dtype.name)
    if plain is not None:
        return stored.view(plain).astype(np.float64)
    out = np.empty(len(stored) // dtype.num_bytes)
    Decoder(len(out))(stored, dtype, out)
    return out


def _fraction(sums: Floats) -> float:
    difference, square = (total((PowerSum(float(r[k]), int(r[k + 1])) for r in sums), 2.0) for k in (0, 2))
    if difference.mantissa and not (square.mantissa and math.isfinite(difference.mantissa)):
        return math.inf
    return math.sqrt(ratio(difference, square))
