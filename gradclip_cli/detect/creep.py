"""A loss that rises too slowly for an alarm, over hundreds of rows, and stays up to the end of the log."""

from __future__ import annotations

import numpy as np

from gradclip_cli.detect.event import Event
from gradclip_cli.detect.rises import is_positive
from gradclip_cli.model import Values

BLOCKS, BLOCK_LEAST, BLOCK_MOST = 20, 10, 50
"""The loss is looked at in block medians: twenty of them, or more of fifty rows each."""
LEARNING_SHARE = 0.1
"""The best block must come after so much of the log: some losses (of a critic, of a generator) grow from the start."""
RISE, LOST = 0.5, 0.3
"""Above the best block by half of its level and by three tenths of the progress made until then. A loss that drifts
up by less, or that swings, is common."""
Z = 4.0
"""Times the spread between neighbouring blocks."""
STAYS = 3
"""So many last blocks must be up."""


def find(y: Values) -> Event | None:
    """The event that a loss which crept up for good makes, from where it left its best level; None where it did not."""
    size = min(max(len(y) // BLOCKS, BLOCK_LEAST), BLOCK_MOST)
    count = len(y) // size
    if count < BLOCKS // 2 or not is_positive(y):  # near 0 there is no telling what is much
        return None
    blocks = np.median(y[len(y) - count * size :].reshape(count, size), axis=1)
    best = int(blocks[:-STAYS].argmin())
    if best < LEARNING_SHARE * count or blocks[best] <= 0:
        return None
    level, end = float(blocks[best]), float(blocks[-STAYS:].min())
    before = blocks[: best + 1]
    spread = float(np.median(np.abs(np.diff(before))))
    if end - level < max(RISE * level, LOST * float(before.max() - level), Z * spread):
        return None
    low = np.flatnonzero(blocks - level < 0.1 * (end - level))
    first = len(y) - (count - int(low[-1]) - 1) * size
    peak = first + int(np.argmax(y[first:]))
    return Event(
        first,
        len(y),
        alarmed=len(y) - 1,
        led=False,
        level=level,
        height=float(y[peak]) - level,
        scale=level,
        fallen=float(before.max()) - level,
        expected=level,
        peak=peak,
        recovered=False,
        excess=(end - level) / level,
        fatal=True,
    )
