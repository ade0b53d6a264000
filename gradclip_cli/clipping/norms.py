"""Norms in float64, whatever the storage, that neither overflow nor depend on how the work was divided.

A tensor is cut into blocks of `BLOCK` elements and these into rows of `ROW`. A row is summed in float64 by one routine; the sums of the
rows of a block, of the blocks of a tensor and of the tensors are added exactly (`math.fsum`), so their order cannot matter, and the
result is the same for any number of threads and ranks. The relative error is that of a row, under 1e-13.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gradclip_cli.clipping.dtypes import Floats

ROW = 1 << 13
"""Elements of a row: OpenBLAS takes more than one thread for a dot product of over 10,000, and sums in another order then."""
BLOCK = 1 << 20

MOST_P = 512.0
"""The highest finite p: a power of a half, which is the least that the largest of scaled numbers is, stays far above zero."""

# Within these a sum of powers has lost nothing to underflow and cannot overflow when 2**60 of its kind are added.
_LOW, _HIGH = 2.0**-900, 2.0**900
# Up to this p a power is a product: quicker, and no less exact.
_MOST_PRODUCTS = 8


@dataclass(frozen=True, slots=True)
class PowerSum:
    """Sum of |x|^p = mantissa * 2**(p * exponent). For p = inf the mantissa is the largest |x|, the exponent 0."""

    mantissa: float
    exponent: int = 0

    def norm(self, p: float) -> float:
        """The p-norm; inf where it is beyond float64."""
        if math.isinf(p) or not math.isfinite(self.mantissa):
            return self.mantissa
        try:
            root = math.sqrt(self.mantissa) if p == 2 else self.mantissa if p == 1 else self.mantissa ** (1 / p)
            return math.ldexp(root, self.exponent)
        except OverflowError:
            return math.inf


def total(sums: Iterable[PowerSum], p: float) -> PowerSum:
    """The sum of sums, correctly rounded and so the same in any order; nan before inf before any number."""
    parts = [s for s in sums if s.mantissa != 0]
    bad = [s.mantissa for s in parts if not math.isfinite(s.mantissa)]
    if bad:
        return PowerSum(math.nan if any(map(math.isnan, bad)) else math.inf)
    if math.isinf(p):
        return PowerSum(max((s.mantissa for s in parts), default=0.0))
    if not parts:
        return PowerSum(0.0)
    top = max(s.exponent for s in parts)
    return PowerSum(math.fsum(_shifted(s, p, top) for s in parts), top)


def _shifted(s: PowerSum, p: float, exponent: int) -> float:
    """The mantissa for a higher exponent."""
    if s.exponent == exponent:
        return s.mantissa
    by = p * (s.exponent - exponent)
    # Below this it is nothing beside the others.
    return math.ldexp(s.mantissa, int(by)) if by == int(by) and by > -4000 else s.mantissa * 2.0**by if by > -1000 else 0.0


def ratio(part: PowerSum, whole: PowerSum) -> float:
    """part / whole of two sums of squares, 0 where both are 0."""
    if part.mantissa == 0:
        return 0.0
    if not math.isfinite(part.mantissa) or not math.isfinite(whole.mantissa):
        return math.nan
    return math.ldexp(part.mantissa / whole.mantissa, 2 * (part.exponent - whole.exponent))


def power_sum(magnitudes: Floats, p: float, scratch: Floats) -> PowerSum:
    """Of numbers, shape (n,); nan or inf where one of them is. Unless p is 2 they must not be negative. An overflow on the way is mended.

    Args:
        scratch: Shape (n,) or longer; overwritten. `magnitudes` is not.
    """
    if not math.isinf(p):
        mantissa = _sum(magnitudes, p, scratch)
        if _LOW < mantissa < _HIGH:
            return PowerSum(mantissa)
    largest = float(np.abs(magnitudes, out=scratch[: len(magnitudes)]).max(initial=0))
    if math.isinf(p) or largest == 0 or not math.isfinite(largest):
        return PowerSum(largest)
    exponent = math.frexp(largest)[1]
    return PowerSum(_sum(np.ldexp(magnitudes, -exponent), p, scratch), exponent)


def _sum(x: Floats, p: float, scratch: Floats) -> float:
    if p == 2:
        return dot(x, x)
    powers = x
    if p != 1:
        powers = scratch[: len(x)]
        if p == int(p) and p <= _MOST_PRODUCTS:
            np.multiply(x, x, out=powers)
            for _ in range(int(p) - 2):
                np.multiply(powers, x, out=powers)
        else:
            np.power(x, p, out=powers)
    whole = len(x) - len(x) % ROW
    return exactly([*powers[:whole].reshape(-1, ROW).sum(axis=1).tolist(), float(powers[whole:].sum())])


def dot(x: Floats, y: Floats) -> float:
    """The sum of x * y, row by row."""
    whole = len(x) - len(x) % ROW
    # A row times a column each: all rows in one call, and in each the routine of a dot product.
    rows = np.matmul(x[:whole].reshape(-1, 1, ROW), y[:whole].reshape(-1, ROW, 1))
    return exactly([*rows.ravel().tolist(), float(x[whole:].dot(y[whole:]))])


def exactly(values: Iterable[float]) -> float:
    """The correctly rounded sum; nan or inf where a value is, or where it is beyond float64."""
    try:
        return math.fsum(values)
    except ValueError:
        return math.nan
    except OverflowError:
        return math.inf
