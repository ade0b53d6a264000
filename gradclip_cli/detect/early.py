"""Leaps within the first rows, where there is no baseline yet: what comes after tells that they were none of the start."""

from __future__ import annotations

import numpy as np

from gradclip_cli.detect.baseline import MIN_HISTORY
from gradclip_cli.detect.recovery import forward_median
from gradclip_cli.model import Values

LEAST_BEFORE = 2
"""Rows before the leap: with fewer, nobody knows where the series starts."""
RETURN_ROWS = 64
ROWS = MIN_HISTORY + RETURN_ROWS + 9
"""A return that takes longer may just be the training."""
FOR_GOOD_ROWS = 30
"""It takes so many rows to say that a leap stays."""
AGREE = 0.25
"""The rows before such a leap agree to within so much of it."""


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
