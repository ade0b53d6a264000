"""Exploding steps: points of the gradient norm far above the usual norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradclip_cli.detect import early, ordinary
from gradclip_cli.detect.baseline import LARGEST_LOG, Index, Mask, Usual, highest, moving_median, outside, stretches, usual, usual_without
from gradclip_cli.model.run import Values

RATIO = 10.0
"""Times the usual norm ..."""
Z, MIN_NOISE = 3.5, 0.10
"""... and so many times the noise of the log norm above it ..."""
LONG_RATIO, LONG_ROWS = 3.0, 500
"""... and times what was usual for long: from a passing low the norm may come back."""
SUDDEN_RATIO, SUDDEN_ROWS = 4.0, 5
"""Somewhere in the event the norm must leap by this factor: a slow rise is a change of level."""
MARGIN, MARGIN_RANK, MARGIN_RATIO = 1.35, 2, 20.0
"""The log ratio must exceed the second largest nearby by this factor. Beyond 20 times the usual norm it need not."""
GAP = 3
"""Alarms up to three rows apart are one event."""
MAX_MASKED = 16
"""An event that lasts longer is the new usual: what follows enters the baseline."""
EARLY_BACK_RATIO = 2.0


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """Explosions, shape (events,), and what was usual at each row.

    Attributes:
        first, last, peak: Rows, inclusive.
        level: Norm that was usual before.
        ratio: Largest norm of the event / level.
        bound: Log norm that raises an alarm, for each row.
        usual: Baseline of the log norm.
    """

    first: Index
    last: Index
    peak: Index
    level: list[float]
    ratio: list[float]
    bound: Values
    usual: Usual


def _alarms(x: Values, calm: Mask, seen: Usual, start: tuple[int, int] | None) -> tuple[Index, Index, Values]:
    """First and last rows of the stretches of alarms that leap, and the bound of each row."""
    bound = seen.level + np.maximum(np.log(RATIO), Z * np.maximum(seen.noise, MIN_NOISE))
    alarm = x >= bound
    if alarm.any():
        long = moving_median(x[calm], LONG_ROWS)
        alarm &= x >= np.log(LONG_RATIO) + long[np.clip(seen.history - 1, 0, len(long) - 1)]
    if start:
        alarm[start[0] : start[1]] |= x[start[0] : start[1]] >= x[: start[0]].max() + np.log(RATIO)
    rows = np.flatnonzero(alarm)
    before = x[np.maximum(rows[:, None] - np.arange(1, SUDDEN_ROWS + 1), 0)]
    leap = np.full(len(x), -np.inf)
    leap[rows] = x[rows] - np.median(before, axis=1)
    first, last = stretches(alarm, GAP)
    sudden = highest(leap, first, last) >= np.log(SUDDEN_RATIO)
    return first[sudden], last[sudden], bound


def find(x: Values) -> Found:
    """Explosions in a log norm, in two rounds: what the first finds stays out of the baseline of the second."""
    n = len(x)
    start = early.leap(x, float(np.log(RATIO)), float(np.log(EARLY_BACK_RATIO)))
    calm = np.ones(n, np.bool_)
    seen = usual(x, calm, steady_rise=False)
    first, last, bound = _alarms(x, calm, seen, start)
    if len(first):
        calm = outside(n, first, np.minimum(last, first + MAX_MASKED - 1))
        seen = usual_without(seen, x, calm, steady_rise=False)
        first, last, bound = _alarms(x, calm, seen, start)
    level = seen.level[first]
    if start and len(first) and np.isnan(level[0]):
        level[0] = np.median(x[: start[0]])
    while True:
        rise = highest(x, first, last) - level
        reached, _ = ordinary.reach(x - seen.level, first, last, MARGIN_RANK)
        clear = rise >= np.minimum(MARGIN * reached, np.log(MARGIN_RATIO))
        if clear.all():
            break
        first, last, level = first[clear], last[clear], level[clear]
    peak = np.array([a + int(np.argmax(x[a : b + 1])) for a, b in zip(first, last, strict=True)], np.intp)
    return Found(first, last, peak, np.exp(level).tolist(), np.exp(np.minimum(rise, LARGEST_LOG)).tolist(), bound, seen)
