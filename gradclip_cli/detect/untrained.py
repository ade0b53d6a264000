"""A loss that left its start upwards within its first rows and never came back near it: the run learned nothing."""

from __future__ import annotations

import numpy as np

from gradclip_cli.detect.baseline import SIGMA_PER_MAD
from gradclip_cli.detect.event import Event
from gradclip_cli.detect.rises import is_positive
from gradclip_cli.model.run import Values

LEAST_ROWS = 40
START_ROWS, START_AGREE = 3, 1.5
"""The start: the median of so many rows, the highest at most so many times the lowest. A mean that starts at 0 has none."""
UP, AWAY, NEAR = 2.0, 1.5, 1.25
"""Times the start: what the loss reaches early and ends at, what it never falls below after that, and where it had left."""
EARLY_ROWS, EARLY_SHARE, EARLY_RISE = 100, 0.2, 0.6
"""So many rows, or so much of the log if that is more, brought so much of its highest level: a loss that goes on growing (of a
critic, of a generator) is one for `creep`."""
LEARNED = 0.75
"""A loss that was down at so much of its start had learned."""
SCATTER = 0.25
"""Standard deviation of the rows around their level: the losses of agents and of games scatter more."""
FATAL_UP, FATAL_OVERSHOOT = 5.0, 1.5
"""It ends the run where the loss ends so many times as high as it began, or was up so many times higher than at its end. A
lesser rise to a plateau may be a penalty that is phased in."""
END_ROWS, END_SHARE = 10, 0.1


def find(y: Values, forward: Values) -> Event | None:
    """The event of a loss that never came back to its start, from where it left it; None where it did, or never left.

    Args:
        y: A finite loss.
        forward: Median of each row and the eight after it (`recovery.forward_median`).
    """
    n = len(y)
    if n < LEAST_ROWS or not is_positive(y) or y[:START_ROWS].max() > START_AGREE * y[:START_ROWS].min():
        return None
    start = float(np.median(y[:START_ROWS]))
    tail = max(END_ROWS, int(END_SHARE * n))
    end = float(np.median(y[-tail:]))
    settled = forward[np.isfinite(forward)]
    row = int((settled >= UP * start).argmax())
    early = settled[: min(max(EARLY_ROWS, int(EARLY_SHARE * n)), n // 2)].max()
    if min(end, early) < UP * start or early < EARLY_RISE * settled.max():
        return None
    if settled.min() < LEARNED * start or settled[row:].min() < AWAY * start:
        return None
    if SIGMA_PER_MAD * float(np.median(np.abs(y[row:] / forward[row:] - 1))) > SCATTER:
        return None
    near = np.flatnonzero(forward[:row] < NEAR * start)
    first = int(near[-1]) + 1 if len(near) else 0
    peak = int(np.argmax(y))
    return Event(
        first,
        n,
        alarmed=n - 1,
        led=False,
        level=start,
        height=float(y[peak]) - start,
        scale=start,
        fallen=0.0,
        expected=start,
        peak=peak,
        recovered=False,
        excess=(end - start) / start,
        fatal=bool(end >= FATAL_UP * start or settled.max() >= FATAL_OVERSHOOT * end),
    )
