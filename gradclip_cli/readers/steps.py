"""From step numbers as logged to a strictly increasing axis: resumes, restarts, several writers, rounding, epochs.

Everything here works on one vector of steps in logged order; nothing looks at values except to tell an
epoch's restart of the counter from a new run's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradclip_cli.model.run import Steps, Values

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

# One step back in twenty is not a job that resumes but several writers on one file.
_INTERLEAVED_FRACTION = 0.05
_INTERLEAVED_MIN = 8
# Ranks of one run see other batches, and a like loss.
_UNLIKE = 0.2


@dataclass(frozen=True, eq=False, slots=True)
class Jump:
    """The counter went back between two logged points.

    Attributes:
        index: Position of the first point after the jump.
        resumed_at, last_before: Steps.
    """

    index: int
    resumed_at: int
    last_before: int


def is_interleaved(steps: Steps) -> bool:
    """Whether several writers seem to have appended to one log (each step logged several times, out of order)."""
    if len(steps) < 2 * _INTERLEAVED_MIN or (steps[1:] > steps[:-1]).all():
        return False
    if len(np.unique(steps)) < 0.5 * len(steps) and np.count_nonzero(np.diff(np.maximum.accumulate(steps)) > 0) < 0.01 * len(steps):
        # The highest step hardly ever grows: a counter that starts again every few rows, not one that several share.
        return False
    delta = np.diff(steps)
    if np.count_nonzero(delta == 0) > 0.4 * len(delta):
        return True
    drops = np.flatnonzero(delta < 0)
    if len(drops) <= max(_INTERLEAVED_MIN, _INTERLEAVED_FRACTION * len(steps)):
        return False
    # A counter that starts again every epoch drops often too, but far and to the same place.
    return bool(np.count_nonzero(-delta[drops] <= 4 * max(1.0, float(np.median(np.abs(delta))))) > 0.5 * len(drops))


def first_of_each(steps: Steps, values: Values) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Indices of one point a step, sorted by step: the first logged, but a non-finite one where there is any."""
    order = np.lexsort((np.arange(len(steps)), np.isfinite(values), steps))
    sorted_steps = steps[order]
    keep = np.ones(len(order), bool)
    keep[1:] = sorted_steps[1:] != sorted_steps[:-1]
    return order[keep]


def disagreement(steps: Steps, values: Values) -> int | None:
    """The step from which on several writers of one log are no ranks of one run: the first and last value of a step differ for good.

    In one of ten blocks of steps their median difference is `_UNLIKE` of the larger, and four times the standard error.
    """
    order = np.lexsort((np.arange(len(steps)), steps))
    begins = np.ones(len(order), bool)
    begins[1:] = steps[order][1:] != steps[order][:-1]
    first, last = order[begins], order[np.r_[begins[1:], True]]
    both = (first != last) & np.isfinite(values[first]) & np.isfinite(values[last])
    a, b = values[first[both]], values[last[both]]
    size = np.maximum(np.abs(a), np.abs(b))
    apart = np.divide(b - a, size, out=np.zeros(len(a)), where=size > 0)
    at = steps[first[both]]
    if len(at) < _INTERLEAVED_MIN:
        return None
    blocks = np.array_split(np.arange(len(at)), min(10, len(at) // _INTERLEAVED_MIN))
    usual = np.array([np.median(apart[block]) for block in blocks])
    sigma = 1.4826 * float(np.median(np.abs(apart - np.repeat(usual, [len(block) for block in blocks]))))
    # The standard error of a median is 1.25 sigma / sqrt(n).
    unlike = np.flatnonzero(np.abs(usual) >= max(_UNLIKE, 4 * 1.25 * sigma / np.sqrt(len(blocks[-1]))))
    return int(at[blocks[unlike[0]][0]]) if len(unlike) else None


def restarts(steps: Steps) -> list[int]:
    """Positions where the counter began anew: it went back to, or before, where the attempt had begun."""
    cuts: list[int] = []
    begin = 0
    for d in (np.flatnonzero(np.diff(steps) < 0) + 1).tolist():
        if steps[d] <= steps[begin]:
            cuts.append(d)
            begin = d
    return cuts


def surviving(steps: Steps) -> tuple[Mask, list[Jump], int]:
    """Which points hold when what was logged later wins.

    Returns:
        mask: bool, shape (n,); steps[mask] is strictly increasing.
        jumps: Where the counter went back.
        repeats: How many points were superseded by the very next one with the same step.
    """
    n = len(steps)
    if n < 2:
        return np.ones(n, bool), [], 0
    delta = np.diff(steps)
    if (delta > 0).all():
        return np.ones(n, bool), [], 0
    starts = np.flatnonzero(delta < 0) + 1
    # A point survives unless a later stretch begins at or below its step.
    later_start = np.full(n, np.iinfo(np.int64).max)
    if len(starts):
        first_steps = steps[starts]
        suffix_min = np.minimum.accumulate(first_steps[::-1])[::-1]
        stretch = np.searchsorted(starts, np.arange(n), side="right")
        inside = stretch < len(starts)
        later_start[inside] = suffix_min[stretch[inside]]
    mask = steps < later_start
    repeated = np.append(delta == 0, False)
    repeats = int(np.count_nonzero(repeated & mask))
    mask &= ~repeated
    jumps = [Jump(d, int(steps[d]), int(steps[d - 1])) for d in starts.tolist()]
    return mask, jumps, repeats


def branch_before(steps: Steps, index: int, history: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Indices of the run as it stood before a jump: its last points, at most `history` of them before the resumed step."""
    low = max(0, index - 4 * history - 100_000)
    part = steps[low:index]
    mask, _, _ = surviving(part)
    kept = np.flatnonzero(mask) + low
    begin = int(np.searchsorted(steps[kept], steps[index]))
    return kept[max(0, begin - history) :]


def within_epochs(steps: Steps, epochs: Values | None, steps_per_epoch: int | None, values: Values) -> Steps | None:
    """A running step where the log counts within each epoch; None where it does not.

    Args:
        steps: As logged.
        epochs: The epoch of each point, or None where it is not logged.
        steps_per_epoch: Where the source says so; else the largest step seen in an epoch, rounded up to
            the spacing of the log.
        values: The series, to tell an epoch's restart from a new run's when no epoch is logged: after
            an epoch the loss goes on where it was, a new run starts where the first one did.
    """
    cuts = np.flatnonzero(np.diff(steps) < 0) + 1
    if not len(cuts):
        return None
    if epochs is not None:
        rises = np.diff(epochs)
        if not (rises[cuts - 1] > 0).mean() > 0.5:
            return None
        epoch = epochs.astype(np.int64)
        if (np.diff(epoch) < 0).any():
            return None
        epoch = epoch - epoch[0] if steps_per_epoch is None else epoch - min(int(epoch[0]), 1)
    else:
        bounds = [0, *cuts.tolist(), len(steps)]
        lasts = steps[np.array(bounds[1:]) - 1]
        if len(cuts) < 2 or np.ptp(lasts[:-1]) > 0.02 * lasts.max() + 1 or not (steps[cuts] <= lasts.max() * 0.2 + steps[0]).all():
            return None
        ends, begins, first = values[cuts - 1], values[cuts], values[0]
        goes_on = np.abs(begins - ends) < np.abs(begins - first)
        if np.count_nonzero(goes_on) <= 0.8 * len(cuts):
            return None
        epoch = np.zeros(len(steps), np.int64)
        epoch[cuts] = 1
        epoch = np.cumsum(epoch)
    per_epoch = steps_per_epoch
    if per_epoch is None:
        spacing = int(np.median(np.diff(steps)[np.diff(steps) > 0])) if (np.diff(steps) > 0).any() else 1
        per_epoch = int(steps.max()) + (spacing if steps.min() == 0 else 0)
    total: Steps = epoch * np.int64(max(per_epoch, 1)) + steps
    return total


def unrounded(printed: Steps) -> Steps | None:
    """Steps behind a counter that was printed rounded ("1K, 1K, 2K"): regular spacing where that fits, else spread evenly.

    Returns:
        The steps, strictly increasing, or None where the printed ones go back.
    """
    n = len(printed)
    delta = np.diff(printed)
    if n < 3 or (delta < 0).any() or not (delta == 0).any():
        return None
    if delta[0] > 0:
        regular: Steps = printed[0] + np.arange(n, dtype=np.int64) * delta[0]
        # Rounding is to the digits shown: a guess is right when it is nowhere off by more than one unit of those.
        unit = np.maximum(np.abs(delta[delta > 0]).min(), 10 ** np.maximum(0, np.floor(np.log10(np.maximum(np.abs(printed), 1))) - 1))
        unit = np.where(printed % 1000 == 0, np.maximum(unit, 1000), unit)
        if (np.abs(regular - printed) <= unit).all():
            # The end is quoted as it was printed, so that reader and log speak of the same last step.
            if printed[-1] > regular[-2]:
                regular[-1] = printed[-1]
            return regular
    first = np.flatnonzero(np.concatenate([[True], delta > 0]))
    widths = np.diff(np.append(first, n))
    heights = np.diff(printed[first])
    last_height = int(heights[-1]) if len(heights) else int(widths[-1])
    heights = np.append(heights, max(last_height, int(widths[-1])))
    stretch = np.repeat(np.arange(len(first)), widths)
    inside = np.arange(n) - first[stretch]
    spread: Steps = printed + (inside * heights[stretch]) // widths[stretch]
    return spread if (np.diff(spread) > 0).all() else None
