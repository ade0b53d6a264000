"""What was usual at each row: a level and a noise that outliers, falls and gaps do not disturb.

Everything in `detect` works on the finite rows of one series, counted 0..n-1: a row logged as nan or inf is
not there, so it can disturb nothing. A row marked as part of an event (`calm` false) enters no window either.
All windows count rows, not steps, trail, and leave the present row out.
"""

from __future__ import annotations

from dataclasses import dataclass

import bottleneck as bn
import numpy as np
import numpy.typing as npt

from gradclip_cli.model.run import Values

Mask = npt.NDArray[np.bool_]
Index = npt.NDArray[np.intp]

MIN_HISTORY = 8
"""Calm rows needed before a row is judged."""

LEVEL_ROWS, LEVEL_ROWS_SHORT = 32, 9
"""The lower of the two medians: it follows a fall at once and a rise late, so that a rise is seen before it is usual."""

NOISE_ROWS, NOISE_ROWS_SHORT = 150, 32
NOISE_SHORT_WEIGHT = 0.8
"""The short window lets the noise grow at once where the data get noisier."""

NOISE_FROM = 40
"""Rows before this one take the noise seen up to here: a median over fewer is too rough."""

START_ROWS, START_CAP = 100, 1.6
"""A steep early fall inflates the residuals; second differences do not see it, and bound the noise there."""

SIGMA_PER_MAD = 1.4826
"""Standard deviation / median absolute deviation of a normal distribution."""

LARGEST_LOG = 700.0
"""exp of more overflows."""

REACH = NOISE_ROWS + 2 * LEVEL_ROWS + START_ROWS
"""Calm rows after which an event is out of every window."""


@dataclass(frozen=True, eq=False, slots=True)
class Usual:
    """What was usual just before each row; NaN where there was too little history.

    Attributes:
        level: Lower of the medians of the last 32 and of the last 9 calm rows.
        short: The latter.
        lag: How far the series ran above `level` lately (median of 32 rows): above 0 in a steady rise.
        noise: Standard deviation (robust, over 150 rows) of what `level` and `lag` leave unexplained.
        history: How many calm rows came before.
    """

    level: Values
    short: Values
    lag: Values
    noise: Values
    history: Index


def moving_median(x: Values, rows: int) -> Values:
    """Median of each row and the `rows` - 1 before it; of fewer at the start."""
    return np.asarray(bn.move_median(x, min(rows, len(x)), min_count=1)) if len(x) else x


def moving_max(x: Values, rows: int) -> Values:
    """Largest of each row and the `rows` - 1 before it; of fewer at the start."""
    return np.asarray(bn.move_max(x, min(rows, len(x)), min_count=1)) if len(x) else x


def _before(calm: Mask) -> Index:
    """How many calm rows came before each."""
    return np.asarray(np.cumsum(calm) - calm, np.intp)


def usual(y: Values, calm: Mask, *, steady_rise: bool) -> Usual:
    """The baseline of a finite series, from its calm rows.

    Args:
        steady_rise: Learn `lag` too, and let the noise grow fast; otherwise `lag` is 0.
    """
    z = y[calm]
    history = _before(calm)
    if len(z) <= MIN_HISTORY:
        none = np.full(len(y), np.nan)
        return Usual(none, none, none, none, history)
    short = moving_median(z, LEVEL_ROWS_SHORT)
    level = np.minimum(short, moving_median(z, LEVEL_ROWS))
    above = z[1:] - level[:-1]
    lag = moving_median(above, LEVEL_ROWS) if steady_rise else np.zeros(len(above))
    size = np.abs(above)
    size[1:] = np.abs(above[1:] - lag[:-1])
    noise = moving_median(size, NOISE_ROWS)
    if steady_rise:
        noise = np.maximum(noise, NOISE_SHORT_WEIGHT * moving_median(size, NOISE_ROWS_SHORT))
    noise[:NOISE_FROM] = noise[min(NOISE_FROM, len(noise) - 1)]
    bend = float(np.median(np.abs(np.diff(z[:START_ROWS], 2)))) / np.sqrt(6)  # var of a second difference = 6 sigma^2
    noise[:START_ROWS] = np.minimum(noise[:START_ROWS], START_CAP * bend)
    noise *= SIGMA_PER_MAD

    def before(values: Values, shift: int) -> Values:
        out = values[np.maximum(history - shift, 0)]
        out[history < MIN_HISTORY] = np.nan
        return out

    return Usual(before(level, 1), before(short, 1), before(lag, 2), before(noise, 2), history)


def usual_without(seen: Usual, y: Values, calm: Mask, *, steady_rise: bool) -> Usual:
    """`usual(y, calm)`, given what it is with all rows calm: worked out anew only where a window reaches an event."""
    history = _before(calm)
    first, last = stretches(~calm, gap=2 * REACH)
    stop = np.searchsorted(history, history[last] + REACH, "right")
    context = np.searchsorted(history, history[first] - REACH)
    first[context == 0] = 0  # rows before the event may look ahead at the start
    if (stop - context).sum() > len(y) / 2:
        return usual(y, calm, steady_rise=steady_rise)
    level, short, lag, noise = (v.copy() for v in (seen.level, seen.short, seen.lag, seen.noise))
    for i in range(len(first)):
        a, b, c = int(first[i]), int(stop[i]), int(context[i])
        anew = usual(y[c:b], calm[c:b], steady_rise=steady_rise)
        level[a:b], short[a:b], lag[a:b], noise[a:b] = (v[a - c :] for v in (anew.level, anew.short, anew.lag, anew.noise))
    return Usual(level, short, lag, noise, history)


def stretches(flag: Mask, gap: int) -> tuple[Index, Index]:
    """First and last rows of the flagged stretches; flags up to `gap` rows apart are one stretch."""
    rows = np.flatnonzero(flag)
    if not len(rows):
        return rows, rows
    cut = np.flatnonzero(np.diff(rows) > gap)
    return rows[np.r_[0, cut + 1]], rows[np.r_[cut, len(rows) - 1]]


def outside(n: int, first: Index, last: Index) -> Mask:
    """Rows that lie in none of the stretches."""
    step = np.zeros(n + 1, np.intp)
    np.add.at(step, first, 1)
    np.add.at(step, last + 1, -1)
    return np.asarray(np.cumsum(step[:-1]) == 0)


def highest(x: Values, first: Index, last: Index) -> Values:
    """Largest value of each stretch; the stretches are in order and do not overlap."""
    if not len(first):
        return np.empty(0)
    padded = np.r_[x, -np.inf]
    return np.asarray(np.maximum.reduceat(padded, np.c_[first, last + 1].ravel())[::2])
