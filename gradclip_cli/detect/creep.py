"""A loss that rises too slowly for an alarm, over hundreds of rows, and is up at the end of the log."""

from __future__ import annotations

import numpy as np

from gradclip_cli.detect.baseline import SIGMA_PER_MAD
from gradclip_cli.detect.event import Event
from gradclip_cli.detect.rises import is_positive
from gradclip_cli.model.run import Values

BLOCKS, BLOCK_LEAST, BLOCK_MOST = 20, 10, 50
"""The loss is looked at in block medians: twenty of them, or more of fifty rows each."""
LEARNING_SHARE = 0.1
"""A best block before so much of the log: the loss grows from its start. Some do (of a critic, of a generator), up and down."""
RISE, LOST = 0.5, 0.3
"""Above the best block by half of its level and by three tenths of the progress made until then. A loss that drifts
up by less, or that swings, is common."""
Z = 4.0
"""Times the spread between neighbouring blocks."""
STAYS = 3
"""So many last blocks must be up."""

GROWTH = 2.0
"""Times the first block: a loss that grows from its start must end there ..."""
BELOW, DOWN = 0.03, 0.1
"""... with no block lower than the first by so much of it, nor than one before by so much of the growth ..."""
QUIET = 0.08
"""... and rows that scatter (standard deviation) by so much of their block at most: the losses of agents and of games scatter more."""
FROM_NOTHING, LATE_SHARE = 0.25, 0.2
"""A running mean that starts at 0 grows too: from under a quarter of its end, and in the second half hardly any more."""
FATAL_GROWTH, FATAL_LATE = 5.0, 2.5
"""Growth that gathers pace, over the whole log and over its second half, is a divergence. A steady one may be a sum, or a penalty
that is phased in."""


def find(y: Values) -> Event | None:
    """The event that a loss which crept up for good makes, from where it left its best level; None where it did not.

    One that never fell at all makes one too, which is fatal only if it gathers pace.
    """
    size = min(max(len(y) // BLOCKS, BLOCK_LEAST), BLOCK_MOST)
    count = len(y) // size
    if count < BLOCKS // 2 or not is_positive(y):  # near 0 there is no telling what is much
        return None
    rows = y[len(y) - count * size :].reshape(count, size)
    blocks = np.median(rows, axis=1)
    best = int(blocks[:-STAYS].argmin())
    if blocks[best] <= 0:
        return None
    if best < LEARNING_SHARE * count:
        if not _only_grows(rows, blocks, float(np.median(y[:STAYS]))):
            return None
        return _event(y, len(y) - count * size, blocks, 0, fatal=_gathers_pace(blocks))
    level, end = float(blocks[best]), float(blocks[-STAYS:].min())
    before = blocks[: best + 1]
    spread = float(np.median(np.abs(np.diff(before))))
    if end - level < max(RISE * level, LOST * float(before.max() - level), Z * spread):
        return None
    low = np.flatnonzero(blocks - level < 0.1 * (end - level))
    return _event(y, len(y) - (count - int(low[-1]) - 1) * size, blocks, best, fatal=True)


def _only_grows(rows: Values, blocks: Values, at_first: float) -> bool:
    """Whether a loss never learned: it ends far above its first block, was never much below it, and came down nowhere on the way."""
    start, end = float(blocks[0]), float(blocks[-STAYS:].min())
    growth = end - start
    scatter = SIGMA_PER_MAD * float(np.median(np.abs(rows - blocks[:, None]) / blocks[:, None]))
    if end < GROWTH * start or blocks.min() < (1 - BELOW) * start or scatter > QUIET:
        return False
    if (np.maximum.accumulate(blocks) - blocks).max() > DOWN * growth:
        return False
    return at_first >= FROM_NOTHING * end or end - float(blocks[len(blocks) // 2]) >= LATE_SHARE * growth


def _gathers_pace(blocks: Values) -> bool:
    end = float(blocks[-STAYS:].min())
    return end >= FATAL_GROWTH * float(blocks[0]) and end >= FATAL_LATE * float(blocks[len(blocks) // 2])


def _event(y: Values, first: int, blocks: Values, best: int, fatal: bool) -> Event:
    level, end = float(blocks[best]), float(blocks[-STAYS:].min())
    peak = first + int(np.argmax(y[first:]))
    return Event(
        first,
        len(y),
        alarmed=len(y) - 1,
        led=False,
        level=level,
        height=float(y[peak]) - level,
        scale=level,
        fallen=float(blocks[: best + 1].max()) - level,
        expected=level,
        peak=peak,
        recovered=False,
        excess=(end - level) / level,
        fatal=fatal,
    )
