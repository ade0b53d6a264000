"""Several processes that log the same thing: whose line stands beside whose, and which values are far off."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.run import Values
from gradclip_cli.readers.text.layouts import Positions

Mask = npt.NDArray[np.bool_]

_LEAST_ROWS = 10
# A value of another rank is far above the first rank's if it is so by that many times the usual difference: some 13 standard
# deviations, and 6 of the logarithms, as the losses of single batches may be heavy-tailed.
_FAR, _FAR_RATIO = 40, 20
# One that began within the smaller factor of the first, and ended beyond the larger, has left it.
_BESIDE, _LEFT = 1.5, 5.0


def nearest(lines: Positions, kept: Positions, step: Values) -> Positions:
    """For each line the position in `kept`, increasing, of the nearest line of the same step, or of the nearest at all."""

    def among(wanted: Positions, there: Positions) -> Positions:
        after = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
        before = np.maximum(after - 1, 0)
        closer = np.abs(there[before] - wanted) <= np.abs(there[after] - wanted)
        return np.where(closer, before, after)

    of_all = among(lines, kept)
    steps, of_kept = np.unique(step[kept], return_inverse=True)
    code = np.minimum(np.searchsorted(steps, step[lines]), len(steps) - 1)
    # Steps so far apart that the nearest line of another is never nearer.
    stride = 3 * len(step)
    order = np.lexsort([kept, of_kept])
    of_step = order[among(code * stride + lines, (of_kept * stride + kept)[order])]
    return np.where(steps[code] == step[lines], of_step, of_all)


def far_above(values: Values, own: Values, ranks: Values) -> Mask:
    """Whether values are above those of the first rank by far more than their rank usually differs from it, and by once its usual value."""
    far = np.zeros(len(values), bool)
    usual = float(np.median(np.abs(own[np.isfinite(own)]))) if np.isfinite(own).any() else np.inf
    log = np.log(np.maximum(np.stack([values, own]), np.finfo(float).tiny))
    with np.errstate(invalid="ignore"):
        above, ratio = values - own, np.where(np.minimum(values, own) > 0, log[0] - log[1], np.nan)
    order = np.argsort(ranks, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(ranks[order])) + 1):
        if np.isfinite(above[group]).sum() < _LEAST_ROWS:
            continue
        least = np.maximum(np.abs(own[group]), usual)
        far[group] = above[group] > np.maximum(least, _FAR * _usual_size(above[group]))
        far[group] &= ~(ratio[group] <= _FAR_RATIO * _usual_size(ratio[group]))
        if _left_for_good(values[group], own[group]):
            far[group] |= above[group] > least
    return far


def _left_for_good(values: Values, own: Values) -> bool:
    """Whether a rank began beside the first and ended far above it, be it after the first rows."""
    begin, end = slice(_LEAST_ROWS), slice(-max(len(own) // 4, _LEAST_ROWS), None)
    first, last = float(np.median(own[begin])), float(np.median(own[end]))
    return first > 0 and float(np.median(values[begin])) <= _BESIDE * first and float(np.median(values[end])) >= _LEFT * last > 0


def _usual_size(differences: Values) -> float:
    """The size that a quarter of the differences stays below: a rank may have been far off long before the end."""
    sizes = np.abs(differences[np.isfinite(differences)])
    return float(np.quantile(sizes, 0.25)) if len(sizes) else 0.0
