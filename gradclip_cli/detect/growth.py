"""Growth of the gradient norm: a sustained rise of its level that ends in an event or at the end of the log.

Looked at twice: for a threefold rise within 300 rows and for a tenfold one over more of the log.
"""

from __future__ import annotations

import numpy as np

from gradclip_cli.detect.baseline import LARGEST_LOG, Index, Mask, moving_max
from gradclip_cli.model.run import Values

FACTOR = 3.0
"""Times the level where the rise began ..."""
RECORD = 1.5
"""... and times all levels of the rows before that: a norm that swings sets no record."""
BLOCK, LEAST_BLOCKS, MOST_BLOCKS = 10, 3, 30
"""Levels are medians of ten rows; a rise takes 30 to 300 rows ..."""
SHARE = 0.2
"""... and at most a fifth of the rows so far: many norms grow by 2 or 3 times over a whole training."""
BEFORE_BLOCKS = 50
LEAP_SHARE = 0.6
"""No two neighbouring blocks may make up more than that of the (log) rise: a step is not growth."""
CORRELATION = 0.9
"""Of level and time over the rise."""
LR_RATIO = 1.5
"""The learning rate must not have changed by more meanwhile: the norm follows it."""
Z = 4.0
"""The rise must be so many times the spread within a block."""

SLOW_FACTOR = 10.0
"""A rise over more of the log must be larger ..."""
SLOW_BLOCKS, SLOW_BLOCK = 40, 20
"""... in medians of so many blocks over the whole log, of twenty rows at least ..."""
SLOW_LEAST_BLOCKS, SLOW_LEAP_SHARE = 8, 0.4
"""... over eight blocks at least; by stairs, it is a change of level ..."""
SLOW_LATE_SHARE = 0.15
"""... and its last third must make so much of it: a norm that finds its level early on is no growth."""


def find(x: Values, calm: Mask, level: Values, ends: Index, lr: Values) -> list[tuple[int, int, float]]:
    """Rises of a log norm that end just before one of the rows `ends`.

    Args:
        calm: Rows outside explosions.
        level: Usual log norm before each row.
        ends: Rows where something broke, and the end of the log (the number of rows), in order.
        lr: Learning rate at each row, 0 where unknown.

    Returns:
        First row, last row and factor of each.
    """
    if not len(x):
        return []
    rows = np.flatnonzero(calm)
    slow = _slow(x[rows], np.searchsorted(rows, ends), lr[rows])
    found = _fast(x, rows, level, ends, lr)
    if slow:
        first, last, factor = int(rows[slow[0]]), int(rows[slow[1]]), slow[2]
        found = sorted([(first, last, factor), *(g for g in found if g[0] > last or g[1] < first)])
    return found


def _slow(x: Values, stops: Index, lr: Values) -> tuple[int, int, float] | None:
    """The longest steady rise over much of the log, in calm rows."""
    size = max(len(x) // SLOW_BLOCKS, SLOW_BLOCK)
    count = len(x) // size
    if count <= SLOW_LEAST_BLOCKS:
        return None
    skipped = len(x) - count * size
    block = x[skipped:].reshape(count, size)
    median = np.median(block, axis=1)
    spread = 1.4826 * float(np.median(np.abs(block - median[:, None])))
    for stop in np.unique((stops - skipped) // size)[::-1]:
        if stop <= SLOW_LEAST_BLOCKS:
            break
        begin = int(median[: stop - SLOW_LEAST_BLOCKS].argmin())
        begin += int(np.flatnonzero(median[begin:stop] <= median[begin] + spread)[-1])
        levels = median[begin:stop]
        rise, steps = levels[-1] - levels[0], np.diff(levels)
        if (
            len(levels) < SLOW_LEAST_BLOCKS
            or rise < max(np.log(SLOW_FACTOR), Z * spread)
            or levels[-1] - median[:stop].max() < -spread
            or steps.max() > SLOW_LEAP_SHARE * rise
            or levels[-1] - levels[-1 - len(steps) // 3] < SLOW_LATE_SHARE * rise
            or np.corrcoef(np.arange(len(levels)), levels)[0, 1] < CORRELATION
        ):
            continue
        first, last = skipped + begin * size, skipped + int(stop) * size - 1
        rates = lr[first : last + 1]
        if rates.max() <= LR_RATIO * rates[0]:
            return first, last, float(np.exp(min(rise, LARGEST_LOG)))
    return None


def _fast(x: Values, rows: Index, level: Values, ends: Index, lr: Values) -> list[tuple[int, int, float]]:
    """The rises within 300 rows."""
    low = -moving_max(-level, BLOCK * (MOST_BLOCKS + LEAST_BLOCKS))
    at = np.minimum(ends, len(x) - 1)
    ends = ends[level[at] - low[at] >= 0.8 * np.log(FACTOR)]
    out: list[tuple[int, int, float]] = []
    for stop in np.searchsorted(rows, ends):
        most = min(MOST_BLOCKS, int(SHARE * stop) // BLOCK)
        if most <= LEAST_BLOCKS:
            continue
        count = min(BEFORE_BLOCKS + most, int(stop) // BLOCK)
        block = x[rows[stop - count * BLOCK : stop]].reshape(count, BLOCK)
        median = np.median(block, axis=1)
        begin = count - 1 - most + int(median[count - 1 - most : count - LEAST_BLOCKS].argmin())
        rise = median[-1] - median[begin]
        steps = np.diff(median[begin:])
        spread = 1.4826 * float(np.median(np.abs(block - median[:, None])))
        if (
            rise < max(np.log(FACTOR), Z * spread)
            or median[-1] - median[:begin].max(initial=-np.inf) < np.log(RECORD)
            or steps.max() > LEAP_SHARE * rise
            or np.corrcoef(np.arange(len(steps) + 1), median[begin:])[0, 1] < CORRELATION
        ):
            continue
        first, last = int(rows[stop - (count - begin) * BLOCK]), int(rows[stop - 1])
        rates = lr[max(first - BLOCK * LEAST_BLOCKS, 0) : last + 1]
        if rates.max() / LR_RATIO <= rates.min() and not (out and first <= out[-1][1]):
            out.append((first, last, float(np.exp(min(rise, LARGEST_LOG)))))
    return out
