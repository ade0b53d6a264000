"""Series are logged at steps of their own: which rows of one belong to which rows of another."""

from __future__ import annotations

import bottleneck as bn
import numpy as np

from gradclip_cli.detect.baseline import Index, Mask, outside
from gradclip_cli.model.run import Steps, Values

LR_ROWS, LR_RATIO = 50, 1.5
"""A learning rate that rose by this factor within so many rows: the loss may rise with it."""
LEAD_ROWS, LEAD_ROWS_SHORT, SHORT_LOG = 8, 2, 100
"""An explosion precedes a spike by so many logged rows at most; by fewer in logs of under a hundred rows."""


def covered(steps: Steps, first: Steps, last: Steps) -> Mask:
    """Rows within the stretches of steps; where a stretch lies between two rows, the one after it."""
    if not len(steps) or not len(first):
        return np.zeros(len(steps), np.bool_)
    a, b = np.searchsorted(steps, first), np.searchsorted(steps, last)
    inside = a < len(steps)
    return ~outside(len(steps), a[inside], np.minimum(b, len(steps) - 1)[inside])


def lr_at(steps: Steps, lr_steps: Steps, lr: Values) -> Values:
    """The learning rate that held at each step: the last one logged; nan or negative ones count as 0."""
    if not len(lr_steps):
        return np.zeros(len(steps))
    at = lr[np.clip(np.searchsorted(lr_steps, steps, "right") - 1, 0, len(lr) - 1)]
    return np.where(np.isfinite(at) & (at > 0), at, 0.0)


def lr_raised(lr: Values) -> Mask:
    """Rows where the learning rate is 1.5 times what it was at some row of the last 50."""
    if not len(lr):
        return np.zeros(0, np.bool_)
    return np.asarray((lr > 0) & (lr / LR_RATIO >= bn.move_min(lr, min(LR_ROWS, len(lr)), min_count=1)))


def leads(explosions: Index, norm_steps: Steps, spikes: Index, loss_steps: Steps) -> list[int | None]:
    """For each spike the last explosion that begins at or before it, at most eight rows earlier; a later one is its consequence.

    Args:
        explosions, spikes: First rows, each in its own series.
    """
    if not len(explosions):
        return [None] * len(spikes)
    step, begin = loss_steps[spikes], norm_steps[explosions]
    near = LEAD_ROWS if min(len(norm_steps), len(loss_steps)) >= SHORT_LOG else LEAD_ROWS_SHORT
    last = np.searchsorted(begin, step, "right") - 1
    norm_rows = np.searchsorted(norm_steps, step, "right") - 1 - explosions[last]
    loss_rows = spikes - np.searchsorted(loss_steps, begin[last])
    led = (last >= 0) & ((norm_rows <= near) | (loss_rows <= 0))
    return [int(i) if yes else None for i, yes in zip(last, led, strict=True)]
