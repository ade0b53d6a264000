"""Leaps within the first rows, where there is no baseline yet: what comes after tells that they were none of the start."""

from __future__ import annotations

import numpy as np

from gradclip_cli.detect.baseline import MIN_HISTORY, SIGMA_PER_MAD
from gradclip_cli.detect.recovery import forward_median
from gradclip_cli.model.run import Values

LEAST_BEFORE = 2
"""Rows before the leap: with fewer, nobody knows where the series starts."""
RETURN_ROWS = 64
FILL_ROWS, FILL_WEIGHT, FILL_RESIDUAL = 12, (0.8, 1.01), 0.15
"""A running mean that starts at 0 shows itself in so many rows: the weight of what was before, and how far the first value, which is
the other weight times the loss, is from explaining each next one (root mean square, of itself)."""
FILLED_ROWS, FILLED_RISE = 32, 0.02
"""It is filled where the median of so many rows to come is not so much of it higher."""
ROWS_TO_FILL = 10_000
"""A mean over more is none that anyone logs."""
ROWS = MIN_HISTORY + RETURN_ROWS + 9
"""A return that takes longer may just be the training."""
FOR_GOOD_ROWS = 30
"""It takes so many rows to say that a leap stays."""
AGREE = 0.25
"""The rows before such a leap agree to within so much of it."""
ALONE_SCATTER = 0.25
"""Standard deviation (robust) of the log series around its level behind a leap from the first row: what agents log scatters more."""
ALONE_LEARNED = float(np.log(2))
"""Or it falls by so much: then it learns, and it is the first row that is odd."""


def leap(x: Values, rise: float, slack: float) -> tuple[int, int] | None:
    """The first early leap of a log series, as its first row and the row where it is back.

    Row i < 8 leaps if x[i] >= max(x[:i]) + rise, the rows before it agree to within half of that, and within
    64 rows the median of nine rows is back at max(x[:i]) + slack. A start that falls, however steeply, has no such row.
    """
    forward = forward_median(x[:ROWS])
    for i in range(LEAST_BEFORE, min(MIN_HISTORY, len(x))):
        top = x[:i].max()
        if x[i] < top + rise or top - x[:i].min() > rise / 2:
            continue
        for j in range(i + 1, min(i + RETURN_ROWS, len(forward))):
            if forward[j] <= top + slack:
                return i, j
    return None


def leap_for_good(x: Values, rise: float) -> int | None:
    """First row of an early leap after which a log series stays at least `rise` above all that came before, to its end.

    A start that is still finding its level falls back below that, or had not settled before.
    """
    if len(x) < FOR_GOOD_ROWS + MIN_HISTORY:
        return None
    lowest = np.minimum.accumulate(forward_median(x)[::-1])[::-1]
    for i in range(LEAST_BEFORE, MIN_HISTORY):
        top = x[:i].max()
        if min(x[i], lowest[i]) >= top + rise and top - x[:i].min() <= AGREE * rise:
            return i
    return None


def huge_leap(x: Values, rise: float, rise_alone: float, slack: float) -> tuple[int, int] | None:
    """The first early leap of a log series that is too high to be the start, however it goes on.

    Row i < 8 leaps if it stands `rise` above all before it, which agree to within a quarter of that, and so does the median of it
    and the eight after it. The first row alone may measure something else than the others: behind it a leap takes `rise_alone`,
    and either a return, for which the median does not matter, or quiet rows that do not learn.

    Returns:
        Its first row, and the row from which the median of nine rows is back at the highest before it + slack; where it is never
        back, the row where there is a baseline of the new level.
    """
    for i in range(1, min(MIN_HISTORY, len(x) - MIN_HISTORY + 1)):
        top = x[:i].max()
        alone = i < LEAST_BEFORE
        least = top + (rise_alone if alone else rise)
        if x[i] < least or top - x[:i].min() > AGREE * rise:
            continue
        forward = forward_median(x)
        back = np.flatnonzero(forward[i + 1 :] <= top + slack)
        if len(back) and (alone or forward[i] >= least):
            return i, i + 1 + int(back[0])
        if not len(back) and forward[i] >= least and not (alone and _goes_its_way(x[i:], forward[i:])):
            return i, i + MIN_HISTORY
    return None


def _goes_its_way(x: Values, forward: Values) -> bool:
    """Whether a log series looks like an agent's, or like one that learns and has nothing to do with the row before it."""
    known = np.isfinite(forward)
    scatter = SIGMA_PER_MAD * np.median(np.abs(x - forward)[known])
    return bool(scatter > ALONE_SCATTER or forward[0] - forward[known][-1] > ALONE_LEARNED)


def rows_to_fill(y: Values) -> int:
    """How many rows a loss takes to rise from 0 because it is an exponential running mean that began there; 0 where it is none.

    With weight w and a loss l that hardly changes, y[k] = w y[k - 1] + (1 - w) l, from y[-1] = 0: then y[k] - w y[k - 1] is
    y[0] in each of the first rows.
    """
    start = y[:FILL_ROWS]
    if len(start) < FILL_ROWS or start.min() <= 0:
        return 0
    start = start / start.max()  # whose squares neither overflow ...
    if start[0] < 1e-3:  # ... nor vanish
        return 0
    before, rise = start[:-1], start[1:] - start[0]
    weight = float(before @ rise) / float(before @ before)
    residual = float(np.sqrt(np.mean((rise - weight * before) ** 2))) / start[0]
    if not FILL_WEIGHT[0] <= weight <= FILL_WEIGHT[1] or residual > FILL_RESIDUAL:
        return 0
    ahead = np.lib.stride_tricks.sliding_window_view(y, min(FILLED_ROWS, len(y)))
    filled = np.flatnonzero(np.median(ahead[:ROWS_TO_FILL], axis=1) <= (1 + FILLED_RISE) * y[: min(len(ahead), ROWS_TO_FILL)])
    return int(filled[0]) if len(filled) else min(len(ahead), ROWS_TO_FILL)
