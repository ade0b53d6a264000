"""What is ordinary for these data: the reach of heavy-tailed noise, and leaps that come round regularly or very often."""

from __future__ import annotations

import numpy as np

from gradclip_cli.detect.baseline import Index, Mask, outside
from gradclip_cli.model.run import Values

NEAR_ROWS = 200
"""Rows on either side of an event whose residuals tell how far the noise reaches."""
MARGIN_ROWS = 8
"""Except those next to an event: the foot of a ramp, the last of a decay."""
TAIL_RANKS = 10
"""How many of the largest residuals make the tail."""
TAIL_ROWS_LEAST = 60
TAIL_AHEAD = 100.0
"""The tail is extrapolated to so many times the rows seen."""
CHUNK = 1024
"""Events worked on at once: bounds the memory."""

ROUNDS = 20
"""What turns out to be ordinary is noise that others must stand out of: asked again so many times at most."""

REGULAR_EVENTS = 4
REGULAR_SLACK = 2
"""Rows by which the spacing may vary."""
REGULAR_SKIPS = 3
"""Up to two of the series may have stayed below the alarm in between."""
LIKE = 2.0
"""Heights within this factor of each other are alike."""

BETWEEN = (0.25, 0.7)
"""Of the height: a tail of the noise reaches there too."""

FREQUENT_EVENTS = 10
"""So many alike within 200 rows on either side: the data are of two kinds (tasks, lengths), the loss leaps between them."""


def reach(residual: Values, first: Index, last: Index, rank: int) -> tuple[Values, Values]:
    """How far the noise near each event reaches, from the residuals outside all events.

    Returns:
        For each event the `rank`-th largest residual within 200 rows on either side; and the largest to be expected in
        100 times as many rows if the tail is a power law (Hill's estimator over the ten largest: B. M. Hill, Annals of
        Statistics 3, 1975, 1163-1174). 0 where there are too few rows to tell.
    """
    n = len(residual)
    apart = outside(n, np.maximum(first - MARGIN_ROWS, 0), np.minimum(last + MARGIN_ROWS, n - 1))
    seen = np.where(apart & np.isfinite(residual), residual, -np.inf)
    offsets = np.arange(1, NEAR_ROWS + 1)
    largest, expected = np.zeros(len(first)), np.zeros(len(first))
    for c in range(0, len(first), CHUNK):
        rows = np.concatenate([first[c : c + CHUNK, None] - offsets, last[c : c + CHUNK, None] + offsets], axis=1)
        near = np.where((rows >= 0) & (rows < n), seen[np.clip(rows, 0, n - 1)], -np.inf)
        top = -np.sort(np.partition(-near, TAIL_RANKS, axis=1)[:, : TAIL_RANKS + 1], axis=1)
        count = np.isfinite(near).sum(1)
        largest[c : c + CHUNK] = np.where(count >= rank, np.maximum(top[:, rank - 1], 0.0), 0.0)
        enough = (count >= TAIL_ROWS_LEAST) & (top[:, -1] > 0)
        log = np.log(np.where(enough[:, None], top, 1.0))
        steepness = (log[:, :-1] - log[:, -1:]).mean(1)
        far = np.exp(np.minimum(log[:, -1] + steepness * np.log((TAIL_RANKS + 1) * TAIL_AHEAD), 350.0))
        expected[c : c + CHUNK] = np.where(enough, far, 0.0)
    return largest, expected


def apart(residual: Values, first: Index, last: Index, height: Values) -> Mask:
    """Whether no residual near the event, outside all of them, comes between the noise and heights like its own."""
    n = len(residual)
    quiet = outside(n, first, last) & np.isfinite(residual)
    out = np.zeros(len(first), np.bool_)
    offsets = np.arange(1, NEAR_ROWS + 1)
    for c in range(0, len(first), CHUNK):
        rows = np.concatenate([first[c : c + CHUNK, None] - offsets, last[c : c + CHUNK, None] + offsets], axis=1)
        near = np.clip(rows, 0, n - 1)
        share = np.where((rows >= 0) & (rows < n) & quiet[near], residual[near], 0.0) / height[c : c + CHUNK, None]
        out[c : c + CHUNK] = ~((share > BETWEEN[0]) & (share < BETWEEN[1])).any(1)
    return out


def regular(row: Index, height: Values) -> Index:
    """Positions of the events that come round at a regular spacing with like heights: hard batches, starts of epochs.

    The spacing is the one most pairs of neighbours share; at least four events must keep it.
    """
    none = np.empty(0, np.intp)
    if len(row) < REGULAR_EVENTS:
        return none
    gap = np.sort(np.diff(row))
    alike = np.searchsorted(gap, gap + 2 * REGULAR_SLACK, "right") - np.arange(len(gap))
    commonest = int(alike.argmax())
    period = float(np.median(gap[commonest : commonest + alike[commonest]]))
    chain = np.arange(len(row))
    earlier = [np.searchsorted(row, row - skip * period - REGULAR_SLACK) for skip in range(1, REGULAR_SKIPS + 1)]
    for i in range(1, len(row)):
        for skip, j in enumerate(earlier, 1):
            if j[i] < i and abs(row[i] - row[j[i]] - skip * period) <= REGULAR_SLACK:
                chain[i] = chain[j[i]]
                break
    _, chain, members = np.unique(chain, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(chain, kind="stable"), np.cumsum(members)[:-1])
    out = []
    for group in groups:
        if len(group) < REGULAR_EVENTS:
            continue
        usual = float(np.median(height[group]))
        alike_in_height = group[(height[group] <= LIKE * usual) & (height[group] >= usual / LIKE)]
        if len(alike_in_height) >= REGULAR_EVENTS:
            out.append(alike_in_height)
    return np.concatenate(out) if out else none


def frequent(row: Index, height: Values) -> Index:
    """Positions of the events that come so often, with like heights, that they are the way of these data."""
    low, high = np.searchsorted(row, row - NEAR_ROWS), np.searchsorted(row, row + NEAR_ROWS, "right")
    out = []
    for i in np.flatnonzero(high - low >= FREQUENT_EVENTS):
        near = height[low[i] : high[i]]
        if ((near <= LIKE * height[i]) & (near >= height[i] / LIKE)).sum() >= FREQUENT_EVENTS:
            out.append(i)
    return np.array(out, np.intp)
