"""How the events end: came back, did not, or the log is too short to tell; and whether that ended the run."""

from __future__ import annotations

import numpy as np

from gradclip_cli.detect.baseline import START_ROWS
from gradclip_cli.detect.early import LEAST_BEFORE
from gradclip_cli.detect.event import Event
from gradclip_cli.detect.recovery import BACK_RISE
from gradclip_cli.detect.rises import RISE
from gradclip_cli.model.run import Values

SEE_ROWS, SEE_ROWS_LEAST, SEE_SHARE = 30, 12, 0.2
"""Rows after the onset that it takes to say that the loss does not come back: in short logs a fifth of all rows will do."""
BEYOND = 10.0
"""Times all that was seen before: a loss that ends there needs no more rows."""
FATAL_EXCESS, FATAL_LOST = 0.10, 0.60
"""The run diverged if it ends 10 % above what was expected, or with 60 % of its progress lost."""
COMING_THIRDS = 2
"""A loss is still coming back if at its pace two thirds more of the time since the peak bring it there."""
GROWN_ROWS, GROWN_SHARE = 16, 0.5
"""Some losses (of a critic, of a generator) grow from the start. An early rise of a loss that has not fallen yet, which in its
first rows makes less than half of where it ends, may be that: it does not come back, but is not fatal ..."""
GROWN_MOST = 1e4
"""... unless it ends so many times its level above it: no reward or game explains that."""


def judge(events: list[Event], y: Values, forward: Values, ends_nonfinite: bool) -> None:
    """Fill in peak, height, recovered, excess and fatal. Arguments as in `spikes.find`."""
    n = len(y)
    top, bottom = np.maximum.accumulate(y), np.minimum.accumulate(y)
    for i, e in enumerate(events):
        next_first = events[i + 1].first if i + 1 < len(events) else n
        e.peak = e.first + int(np.argmax(y[e.first : min(e.end, next_first)]))
        e.height = float(y[e.peak]) - e.level
        if e.end < n:
            continue
        rows = n - e.first
        tail = min(max(rows // 3, 3), SEE_ROWS, rows)
        over = float(np.median(y[-tail:])) - e.expected
        e.excess = over / e.scale
        enough = rows >= min(SEE_ROWS, max(SEE_ROWS_LEAST, SEE_SHARE * n)) and not _still_coming(e, y, tail, over)
        if e.first > 0:
            seen = max(float(top[e.first - 1] - bottom[e.first - 1]), e.scale)
            enough |= float(y[-1]) - e.level >= BEYOND * seen
        enough |= ends_nonfinite
        if enough:
            e.recovered = False
            e.fatal = (e.excess >= FATAL_EXCESS or over >= FATAL_LOST * e.fallen) and not _grows_from_the_start(e, forward, over)
            # One row does not tell where the loss was to go.
            e.fatal &= e.first >= LEAST_BEFORE
        else:
            e.recovered = None


def _still_coming(e: Event, y: Values, tail: int, over: float) -> bool:
    """Whether the end of the log cuts off a return: what is left shrinks by `over / before` in a third of the time since the peak."""
    third = len(y) - (len(y) - e.peak) // 3
    before = float(np.median(y[max(third - tail, e.peak) : third])) - e.expected
    return 0 < over < before and over * (over / before) ** COMING_THIRDS <= BACK_RISE * e.scale


def _grows_from_the_start(e: Event, forward: Values, over: float) -> bool:
    if e.led or e.first >= START_ROWS or e.fallen >= RISE * e.scale or e.excess >= GROWN_MOST:
        return False
    at_first = forward[e.first : e.first + GROWN_ROWS]
    return float(at_first[np.isfinite(at_first)].max(initial=e.level)) - e.level < GROWN_SHARE * over
