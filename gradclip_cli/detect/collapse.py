"""A fall of the loss that no learning makes: within one row to exactly zero, or far below zero where it never was."""

from __future__ import annotations

import numpy as np

from gradclip_cli.detect.baseline import LEVEL_ROWS, LEVEL_ROWS_SHORT, moving_median, stretches
from gradclip_cli.model.run import Values

ZERO_ROWS = 10
"""So many zeros in a row: some trainers write single ones for nan."""
LEAST_BEFORE = 3
"""Rows before the zeros."""
OF_HIGHEST, OF_LEVEL = 0.02, 0.5
"""Until then the loss was at so much of its highest level so far, and of its usual one: a solved task comes down to zero gradually."""
GRAINS = 20
"""A loss that is printed with few digits may be rounded to zero from so many times the last digit down."""
POSITIVE_ROWS = 32
"""A loss that was above zero on so many rows is taken for one that cannot be below."""


def find(y: Values) -> list[tuple[int, int]]:
    """First and last rows of the collapses of a finite loss, in order."""
    return sorted(_to_zero(y) + _below_zero(y))


def _to_zero(y: Values) -> list[tuple[int, int]]:
    first, last = stretches(y == 0, gap=1)
    long = (last - first + 1 >= ZERO_ROWS) & (first >= LEAST_BEFORE)
    if not long.any():
        return []
    lowest, highest = np.minimum.accumulate(y), np.maximum.accumulate(moving_median(y, LEVEL_ROWS_SHORT))
    values = np.unique(y)
    grain = float(np.diff(values[values > 0]).min(initial=np.inf))
    out = []
    for a, b in zip(first[long].tolist(), last[long].tolist(), strict=True):
        lately = y[max(a - LEVEL_ROWS, 0) : a]
        level = float(np.median(lately))
        least = max(OF_LEVEL * level, OF_HIGHEST * float(highest[a - 1]))
        coarse = np.isfinite(grain) and level < GRAINS * grain
        if lowest[a - 1] >= 0 and lately.min() > 0 and lately[-LEVEL_ROWS_SHORT:].min() >= least and not coarse:
            out.append((a, b))
    return out


def _below_zero(y: Values) -> list[tuple[int, int]]:
    """The first fall below zero, if it is deeper than the loss was ever high."""
    below = y <= 0
    row = int(below.argmax()) if below.any() else 0
    if row < POSITIVE_ROWS or -y[row] <= y[:row].max():
        return []
    back = np.flatnonzero(~below[row:])
    return [(row, row + int(back[0]) - 1 if len(back) else len(y) - 1)]
