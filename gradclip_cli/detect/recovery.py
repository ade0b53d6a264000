"""Did the loss come back to where it would be without the spike, and when?"""

from __future__ import annotations

import bottleneck as bn
import numpy as np

from gradclip_cli.detect.baseline import Index, Mask
from gradclip_cli.model.run import Values

BACK_ROWS, BACK_ROWS_LEAST = 9, 3
"""Rows whose median must be back, so that one lucky row ends no spike; fewer at the end of the log."""
QUIET_ROWS = 3
"""A return needs so many rows without a new alarm."""
BACK_Z, BACK_RISE, BACK_FALL = 1.25, 0.06, 0.01
"""How near is back: the largest of these times the noise, the level and the fall in loss so far. Half of what raises
an alarm, so that the end of a spike is not a matter of luck."""

TREND_ROWS, TREND_ROWS_LEAST = (40, 100), 10
TREND_DAMPING = 100.0
"""A trend is continued over so many rows at most: losses flatten out."""
TREND_SHARE = 0.5
"""Of the fall so far, and of the level: more is not expected of the future, a fit early in a run promises too much."""
TREND_UP_SHARE = 0.12
"""Of the level: how far a loss that was rising slowly is expected to rise on."""
CHUNK = 2048
"""Events worked on at once: bounds the memory."""


def forward_median(y: Values) -> Values:
    """Median of each row and the eight after it; of fewer, at least three, at the end; then inf."""
    n = len(y)
    out = np.full(n, np.inf)
    if n >= BACK_ROWS:
        out[: n - BACK_ROWS + 1] = bn.move_median(y, BACK_ROWS)[BACK_ROWS - 1 :]
    for i in range(max(0, n - BACK_ROWS + 1), n - BACK_ROWS_LEAST + 1):
        out[i] = np.median(y[i:])
    return out


def _slopes(y: Values, calm_rows: Index, history: Index, rows: int) -> Values:
    """Least-squares slope per row over the last `rows` calm rows before each event."""
    k = history[:, None] - 1 - np.arange(rows)
    inside = k >= 0
    at = calm_rows[np.maximum(k, 0)]
    count = np.maximum(inside.sum(1, keepdims=True), 1)
    t, v = at.astype(float), y[at]
    t = np.where(inside, t - (t * inside).sum(1, keepdims=True) / count, 0.0)
    v = np.where(inside, v - (v * inside).sum(1, keepdims=True) / count, 0.0)
    slope = (t * v).sum(1) / np.maximum((t * t).sum(1), 1.0)
    return np.where(count[:, 0] >= TREND_ROWS_LEAST, slope, 0.0)


def trend(y: Values, calm: Mask, history: Index, fallen: Values, scale: Values) -> tuple[Values, Values]:
    """What the loss was still going to do at each event.

    Expected t rows later: level + drift * (1 - exp(-t / tau)), where drift = slope * tau. The slope is the flatter of a
    40-row and a 100-row fit, 0 where they disagree in sign. Where the near fit is the flatter one the loss is
    flattening out, and tau is the pace of that; it is 100 rows at most.

    Args:
        history: How many calm rows came before each event.
        fallen, scale: The fall in loss so far and the level at each event: they bound the drift.

    Returns:
        drift and tau, shape (events,).
    """
    calm_rows = np.flatnonzero(calm)
    drift, tau = np.zeros(len(history)), np.full(len(history), TREND_DAMPING)
    for c in range(0, len(history), CHUNK):
        h = history[c : c + CHUNK]
        near, far = (_slopes(y, calm_rows, h, rows) for rows in TREND_ROWS)
        agree = (near != 0) & (np.sign(near) == np.sign(far))
        flattening = agree & (np.abs(far) > np.abs(near))
        apart = np.maximum(np.minimum(h, TREND_ROWS[1]) - np.minimum(h, TREND_ROWS[0]), 2) / 2  # of the fits' centres
        pace = np.log(np.abs(far), out=np.zeros(len(h)), where=flattening) - np.log(np.abs(near), out=np.zeros(len(h)), where=flattening)
        tau[c : c + CHUNK] = np.minimum(apart / np.maximum(pace, apart / TREND_DAMPING), TREND_DAMPING)
        drift[c : c + CHUNK] = np.where(agree, np.where(flattening, near, far), 0.0) * tau[c : c + CHUNK]
    lowest = -TREND_SHARE * np.minimum(fallen, scale)
    return np.clip(drift, lowest, TREND_UP_SHARE * scale), tau


def back_at(forward: Values, quiet: Mask, onset: Index, goal: Values, drift: Values, tau: Values) -> Index:
    """First row after each onset where the forward median is at most goal + drift * (1 - exp(-t / tau)); n if none.

    Linear in the rows looked at: the near rows of all events at once; the far ones, where the goal no longer moves,
    by the minima of blocks.
    """
    n = len(forward)
    seen = np.where(quiet, forward, np.inf)
    back = np.full(len(onset), n)
    todo = np.arange(len(onset))
    start, width = 1, 64
    while len(todo) and start < 8 * TREND_DAMPING:
        t = start + np.arange(width)
        for c in range(0, len(todo), CHUNK):
            some = todo[c : c + CHUNK]
            rows = onset[some, None] + t
            hit = seen[np.minimum(rows, n - 1)] <= goal[some, None] + drift[some, None] * (1 - np.exp(-t / tau[some, None]))
            hit &= rows < n
            found = hit.any(1)
            back[some[found]] = onset[some[found]] + start + hit[found].argmax(1)
        start, width = start + width, 2 * width
        todo = todo[(back[todo] == n) & (onset[todo] + start < n)]
    size = 1024
    low = np.full(-(-n // size) * size, np.inf)
    low[:n] = seen
    blocks = low.reshape(-1, size).min(1)
    for i in todo.tolist():
        row, limit = int(onset[i]) + start, goal[i] + drift[i]
        block = row // size
        hits = np.flatnonzero(low[row : (block + 1) * size] <= limit)
        if not len(hits):
            later = np.flatnonzero(blocks[block + 1 :] <= limit)
            if not len(later):
                continue
            row = (block + 1 + int(later[0])) * size
            hits = np.flatnonzero(low[row : row + size] <= limit)
        back[i] = row + int(hits[0])
    return back
