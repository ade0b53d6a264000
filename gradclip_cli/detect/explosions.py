"""Exploding steps: points of the gradient norm far above the usual norm."""

from __future__ import annotations

import numpy as np

from gradclip_cli.model import Values

from gradclip_cli.detect import early, ordinary
from gradclip_cli.detect.baseline import Index, Usual, highest, moving_median, outside, stretches, usual

RATIO = 10.0
"""Times the usual norm."""
Z, MIN_NOISE = 3.5, 0.10
"""And above the noise of the log norm, where that is larger."""
LONG_RATIO, LONG_ROWS = 3.0, 500
"""And above what was usual for long: after a passing low the norm may come back."""
SUDDEN_RATIO, SUDDEN_ROWS = 4.0, 5
"""Somewhere in the event the norm must leap: a slow rise is a change of level."""
TAIL_MARGIN, TAIL_RANK, TAIL_RATIO = 1.35, 2, 20.0
"""Above what the noise nearby reaches, in log norm."""
GAP = 3
"""Alarms up to three rows apart are one event."""
MAX_MASKED = 16
"""An event that lasts longer is the new usual: what follows enters the baseline."""
EARLY_BACK_RATIO = 2.0


def find(x: Values) -> tuple[Index, Index, Values, Values, Usual]:
    """Explosions in a log norm.

    Returns:
        first and last rows, the level before each, the bound of each row, and the baseline.
    """
    n = len(x)
    start = early.leap(x, float(np.log(RATIO)), float(np.log(EARLY_BACK_RATIO)))
    leap = np.full(n, -np.inf)
    leap[1:] = x[1:] - moving_median(x, SUDDEN_ROWS)[:-1]
    first = last = np.empty(0, np.intp)
    for _ in range(2):
        calm = outside(n, first, np.minimum(last, first + MAX_MASKED - 1))
        seen = usual(x, calm)
        bound = seen.level + np.maximum(np.log(RATIO), Z * np.maximum(seen.noise, MIN_NOISE))
        alarm = x >= bound
        if alarm.any():
            long = moving_median(x[calm], LONG_ROWS)
            alarm &= x >= np.log(LONG_RATIO) + long[np.clip(seen.history - 1, 0, len(long) - 1)]
        if start:
            alarm[start[0] : start[1]] = x[start[0] : start[1]] >= x[: start[0]].max() + np.log(RATIO)
        first, last = stretches(alarm, GAP)
        sudden = highest(leap, first, last) >= np.log(SUDDEN_RATIO)
        first, last = first[sudden], last[sudden]
    level = np.where(np.isnan(seen.level[first]), np.median(x[: start[0]]) if start else 0.0, seen.level[first])
    while True:
        reach, _ = ordinary.reach(x - seen.level, first, last, TAIL_RANK)
        clear = highest(x, first, last) - level >= np.minimum(TAIL_MARGIN * reach, np.log(TAIL_RATIO))
        if clear.all():
            return first, last, level, bound, seen
        first, last, level = first[clear], last[clear], level[clear]
