"""How many of the first norms are of a run that had not settled yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradclip_cli.detect.baseline import SIGMA_PER_MAD, moving_median
from gradclip_cli.model.run import Values

LEAST_ROWS = 30
"""With fewer rows nobody can tell a start from the rest."""
LONGEST = 0.25
"""Of the rows. What lasts longer is no warm-up but the way of the run: drift."""
REACHED = 0.99
"""Of the largest learning rate: the ramp is over."""
RAMP = 0.5
"""A learning rate that starts below so much of its largest is being warmed up."""
WINDOW, WINDOW_LEAST = 100, 9
"""The level at a row is the median of the next 1/100 of the rows, at least 9."""
SETTLED_LOG, SETTLED_NOISE = float(np.log(1.25)), 2.0
"""Settled: within 25 %, or twice the noise, of the trend that the rest of the run follows ..."""
FIRST_LOG, FIRST_NOISE = float(np.log(1.5)), 3.0
"""... after which single rows right at the start may still stand out by 50 %, or three times the noise."""


@dataclass(frozen=True, slots=True)
class Warmup:
    """Rows to leave out at the start.

    Attributes:
        rows: How many, the larger of the next two.
        settling: Rows before the norm had settled.
        ramp: Rows before the learning rate had risen; 0 where it did not rise, or for too long.
        long_ramp: The learning rate rises for more than a quarter of the rows, which were kept.
    """

    rows: int
    settling: int
    ramp: int
    long_ramp: bool


def warmup(x: Values, lr: Values) -> Warmup:
    """Where a log norm leaves its start behind.

    The trend of the rest is a resistant line (J. W. Tukey, Exploratory Data Analysis, 1977: through the medians of
    outer thirds) over all rows but the first quarter, drawn on to the first row: a run whose norm keeps falling has
    drift, not an endless warm-up.

    Args:
        x: Log of the finite norms outside explosions and their aftermath, shape (n,).
        lr: The learning rate at these rows, shape (n,); all 0 where it was not logged.
    """
    n = len(x)
    if n < LEAST_ROWS:
        return Warmup(0, 0, 0, False)
    longest = int(LONGEST * n)
    settling = min(_settling(x, longest), longest)
    ramp = int(np.argmax(lr >= REACHED * lr.max())) if lr[0] < RAMP * lr.max() else 0
    long_ramp = ramp > longest
    ramp = 0 if long_ramp else ramp
    return Warmup(max(settling, ramp), settling, ramp, long_ramp)


def _settling(x: Values, longest: int) -> int:
    above = x - _trend(x, longest)
    noise = SIGMA_PER_MAD * float(np.median(np.abs(above[longest:] - np.median(above[longest:]))))
    rows = max(WINDOW_LEAST, len(x) // WINDOW)
    level = moving_median(above[: longest + rows], rows)[rows - 1 :]
    settled = np.abs(level) <= max(SETTLED_LOG, SETTLED_NOISE * noise)
    first = int(np.argmax(settled)) if settled.any() else longest
    stands_out = above[first:longest] > max(FIRST_LOG, FIRST_NOISE * noise)
    return first + (int(np.argmin(stands_out)) if not stands_out.all() else len(stands_out))


def _trend(x: Values, first: int) -> Values:
    rows = np.arange(len(x), dtype=np.float64)
    thirds = np.array_split(np.arange(first, len(x)), 3)
    left, right = thirds[0], thirds[2]
    slope = (np.median(x[right]) - np.median(x[left])) / (rows[right].mean() - rows[left].mean())
    line = slope * rows
    return np.asarray(line + np.median((x - line)[first:]))
