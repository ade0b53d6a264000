"""How far the loss rises above what was usual, and which rises are alarms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradclip_cli.detect.baseline import LEVEL_ROWS, MIN_HISTORY, Mask, Usual, moving_max
from gradclip_cli.model.run import Values

RISE = 0.12
"""Of the level: less is no spike, however quiet the loss."""
FALL = 0.02
"""Of the fall in loss so far: near zero a percentage of the level means little."""
Z_ALONE, Z_STAYS, Z_LONG = 9.0, 6.5, 4.0
"""Times the noise: for one row, where two of three rows stay high, and where the median of nine rows does."""
MIN_NOISE = 0.003
"""Of the level."""
LR_RISE = 2.0
"""After a rise of the learning rate a rise in loss is usual: ask for twice as much."""
SPAN_PERCENT = (5.0, 95.0)
SPAN_LEVEL = 0.1
"""For a loss that can be negative its robust span stands in for the level, at least this part of the level's size."""
POSITIVE_SHARE = 0.99
"""A few zeros (some trainers write 0 for nan) do not make a loss one that can be negative."""


@dataclass(frozen=True, eq=False, slots=True)
class Rise:
    """For each row; NaN where it cannot be judged.

    Attributes:
        base: Usual level, plus what the loss ran above it of late anyway: a steady rise is no spike.
        rise: Loss - base.
        scale: What a relative rise is relative to: the level; the span of a loss that can be negative.
        noise: Standard deviation, with a floor.
        fallen: How far the loss has come down so far.
        alone, stays, long: Rise needed for an alarm by one row, by two of three, by nine.
    """

    base: Values
    rise: Values
    scale: Values
    noise: Values
    fallen: Values
    alone: Values
    stays: Values
    long: Values


def is_positive(y: Values) -> bool:
    """Whether this is a loss that cannot be negative, so that percentages of it make sense."""
    return bool((y <= 0).sum() <= max(1.0, (1 - POSITIVE_SHARE) * len(y)))


def rises(y: Values, calm: Mask, seen: Usual, raised: Mask) -> Rise:
    """The rise of each row and what it takes to be an alarm: the largest of 12 % of the level, 2 % of the fall so far, z * noise."""
    if is_positive(y):
        scale = np.where(seen.level > 0, seen.level, np.nan)
    else:
        z = y[calm]
        low, high = np.percentile(z, SPAN_PERCENT)
        lately = moving_max(z, LEVEL_ROWS) + moving_max(-z, LEVEL_ROWS)
        scale = np.maximum(np.maximum(high - low, SPAN_LEVEL * np.abs(seen.level)), lately[np.clip(seen.history - 1, 0, len(z) - 1)])
        scale = np.where((seen.history >= 2 * MIN_HISTORY) & (scale > 0), scale, np.nan)  # such a scale takes longer to know
    fallen = np.maximum(np.fmax.accumulate(seen.short) - seen.level, 0.0)
    noise = np.maximum(seen.noise, MIN_NOISE * scale)
    least = np.maximum(RISE * scale, FALL * fallen) * np.where(raised, LR_RISE, 1.0)
    base = seen.level + np.maximum(seen.lag, 0.0)
    return Rise(base, y - base, scale, noise, fallen, *(np.maximum(least, z * noise) for z in (Z_ALONE, Z_STAYS, Z_LONG)))


def _ahead(flag: Mask, rows: int) -> Mask:
    out = np.zeros_like(flag)
    out[: max(len(flag) - rows, 0)] = flag[rows:]
    return out


def alarms(r: Rise, forward: Values, led: Mask) -> tuple[Mask, Mask]:
    """Rows that raise an alarm, and rows that rise half as far (where an event may begin).

    Args:
        forward: Median of each row and the eight after it.
        led: Rows that an explosion of the norm precedes closely: they need no second row to back them.
    """
    half = r.rise >= 0.5 * r.stays
    two_of_three = half.astype(np.int8) + _ahead(half, 1) + _ahead(half, 2) >= 2
    alarm = r.rise >= r.alone
    alarm |= (r.rise >= r.stays) & (two_of_three | led)
    alarm |= (r.rise >= r.long) & (forward - r.base >= r.long) & np.isfinite(forward)
    return alarm & (r.rise > 0), half
