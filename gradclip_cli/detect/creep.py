"""A loss that rises too slowly for an alarm, over hundreds of rows, and stays up to the end of the log."""

from __future__ import annotations

import numpy as np

from gradclip_cli.model import Values

from .rises import SPAN_PERCENT, is_positive

BLOCKS, BLOCK_LEAST, BLOCK_MOST = 20, 10, 50
"""The loss is looked at in block medians: twenty of them, or more of fifty rows each."""
LEARNING_SHARE = 0.1
"""The best block must come after so much of the log: some losses (of a critic, of a generator) grow from the start."""
RISE, LOST = 0.5, 0.3
"""Above the best block by half of its level and by three tenths of the progress made until then. A loss that drifts
up by less, or that swings, is common."""
Z = 8.0
"""Times the spread between neighbouring blocks."""
STAYS = 3
"""So many last blocks must be up."""


def find(y: Values) -> tuple[int, float, float] | None:
    """Where a loss began to creep up for good.

    Returns:
        The first row of the rise, the level before it, and the level of the loss at the end; None where it did not.
    """
    size = min(max(len(y) // BLOCKS, BLOCK_LEAST), BLOCK_MOST)
    count = len(y) // size
    if count < BLOCKS // 2:
        return None
    blocks = np.median(y[len(y) - count * size :].reshape(count, size), axis=1)
    best = int(blocks[:-STAYS].argmin())
    if best < LEARNING_SHARE * count:
        return None
    level, end = float(blocks[best]), float(blocks[-STAYS:].min())
    before = blocks[: best + 1]
    scale = level if is_positive(y) else float(np.subtract(*np.percentile(before, SPAN_PERCENT[::-1])))
    spread = float(np.median(np.abs(np.diff(before))))
    if end - level < max(RISE * scale, LOST * float(before.max() - level), Z * spread):
        return None
    low = np.flatnonzero(blocks - level < 0.1 * (end - level))
    return len(y) - (count - int(low[-1]) - 1) * size, level, float(blocks[-1])
