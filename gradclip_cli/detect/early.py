"""Leaps within the first rows, where there is no baseline yet: what comes after tells that they were none of the start."""

from __future__ import annotations

from gradclip_cli.detect.baseline import MIN_HISTORY
from gradclip_cli.detect.recovery import forward_median
from gradclip_cli.model import Values

LEAST_BEFORE = 2
"""Rows before the leap: with fewer, nobody knows where the series starts."""
RETURN_ROWS = 64
ROWS = MIN_HISTORY + RETURN_ROWS + 9
"""A return that takes longer may just be the training."""


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
