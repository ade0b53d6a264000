"""Which update each line of a log belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gradclip_cli.model.run import Values
from gradclip_cli.readers.text.fields import BAR, BAR_TOTAL, COUNT, LABEL, TOTAL, Layout
from gradclip_cli.readers.text.format import Format
from gradclip_cli.readers.text.records import Mask, Records, is_counter

# More is no number of steps but something torn or not a counter.
_MAX_STEPS = 1e12
# Of the lines below them, so many must find a step.
_CARRIED = 0.95
# Fewer lines do not show whether their steps go on.
_FEW = 3
# A counter without a name must rise this often, and begin anew no more often than that.
_RISING, _RESTARTING = 0.3, 0.2


@dataclass(frozen=True, eq=False, slots=True)
class Stepping:
    """The step of each line.

    Attributes:
        key: What to call it.
        of_line: float64, shape (num_lines,); NaN where a line has none.
        rounded: Printed so short that neighbours collide.
        per_epoch: How many there are in an epoch, or in the run, where the log says so.
    """

    key: str
    of_line: Values
    rounded: bool = False
    per_epoch: int | None = None


def find(records: Records, format: Format) -> Stepping | None:
    """The step of each line: its own, or that of a line above it. None where there is none to be had."""
    training = records.training
    own = _own_key(records, training)
    if own == BAR and np.isfinite(records.dense(BAR)[records.main]).mean() < _CARRIED:
        # The bar shares the line with a few of the dicts that were printed below it.
        own = None
    if own is None and _counts(records, training):
        own = COUNT
    if own is not None and (steps := _own(records, training, own)) and _goes_on(steps.of_line[training]):
        return steps
    labels = records.dense(LABEL)
    if training.any() and is_counter(labels[training]):
        return Stepping("line label", labels)
    return _carried(records, training, format)


def _goes_on(step: Values) -> bool:
    """Whether steps go on from line to line, however often one is repeated (by ranks, or for each part of a batch)."""
    moves = np.diff(step[np.isfinite(step)])
    moves = moves[moves != 0]
    return len(step) < _FEW or bool(len(moves) >= _FEW - 1 and (moves > 0).mean() >= _RISING)


def _own_key(records: Records, training: Mask) -> str | None:
    """What most training lines call their step; None where most have none."""
    counts: Counter[str | None] = Counter()
    kinds, num_lines = np.unique(records.layout[training], return_counts=True)
    for i, n in zip(kinds.tolist(), num_lines.tolist(), strict=True):
        counts[records.layouts[i].step] += n
    return max(counts, key=lambda k: (counts[k], k is not None), default=None)


def _own(records: Records, training: Mask, key: str) -> Stepping:
    at, values, rounded = records.values(key)
    # Other lines (evaluations) may call their step otherwise.
    step = _gathered(records, {i: layout.step for i, layout in enumerate(records.layouts) if layout.step not in (key, BAR)})
    step[at] = values
    epoch, of_all = _epochs(records, training), records.dense(BAR_TOTAL if key == BAR else TOTAL + key)
    total = of_all[training & (of_all < _MAX_STEPS)]
    if len(total) >= _FEW and (np.diff(total) != 0).mean() > 0.5 > (np.diff(step[training]) != 0).mean():
        # `Batch 0/100`, `Batch 0/200`: the epoch and the batch.
        step, epoch, total = of_all, step, total[:0]
    per_epoch = int(total.max()) if len(total) else None
    name = {BAR: "bar", COUNT: "counter"}.get(key, key)
    both = training & np.isfinite(step) & np.isfinite(epoch)
    if not _restarts(step[both], epoch[both]):
        return Stepping(name, step, rounded, per_epoch)
    known = per_epoch is not None
    if per_epoch is None:
        per_epoch = _seen_per_epoch(step[both])
    # The first epoch may be numbered 0 or 1; a log that begins later counts from 1, as most do.
    base = min(1.0, float(epoch[both].min()))
    size = f"{per_epoch} to an epoch" if known else f"{per_epoch} to an epoch, the most that is seen"
    records.notes.append(f"steps were made from the epoch and {name!r}, {size}")
    return Stepping("step", np.where(np.isfinite(epoch), (epoch - base) * per_epoch + step, np.nan), rounded)


def _counts(records: Records, training: Mask) -> bool:
    """Whether the nameless number in most training lines is a counter: of all, of an epoch, of one that begins anew at its end."""
    count = records.dense(COUNT)[training]
    if not len(count) or np.isfinite(count).mean() < _CARRIED:
        return False
    if is_counter(count):
        return True
    here = np.isfinite(count)
    rises = np.diff(count[here])
    if not np.isfinite(records.dense(TOTAL + COUNT)[training][here]).all() or (rises > 0).mean() < _RISING:
        return False
    # Where it falls it begins anew, and so it does seldom; ranks and folds (`[2/8]`) fall as often as they rise, or do not move.
    begins = count[here][1:][rises < 0]
    return len(begins) <= _RESTARTING * len(rises) and bool((begins <= count[here].min() + np.median(rises[rises > 0])).all())


def _seen_per_epoch(step: Values) -> int:
    """How many steps an epoch has at least, by a counter that begins anew in each."""
    rises = np.diff(step)
    return int(step.max()) + (int(np.median(rises[rises > 0])) if step.min() == 0 and (rises > 0).any() else 0)


def _epochs(records: Records, training: Mask) -> Values:
    """The epoch of each line: its own, or that of the heading above it."""
    own = _gathered(records, {i: layout.epoch for i, layout in enumerate(records.layouts) if layout.training})
    if np.isfinite(own[training]).any():
        return own
    return _filled(_gathered(records, {i: layout.epoch for i, layout in enumerate(records.layouts) if layout.counts}))


def _gathered(records: Records, key_of: Mapping[int, str | None]) -> Values:
    """One value a line, under a key that depends on its layout (index -> key); NaN where there is none."""
    out = np.full(len(records), np.nan)
    for key in sorted({k for k in key_of.values() if k is not None}):
        rows, values, _ = records.values(key)
        own = np.array([key_of.get(i) == key for i in range(len(records.layouts))])[records.layout[rows]]
        out[rows[own]] = values[own]
    return out


def _restarts(step: Values, epoch: Values) -> bool:
    """Whether a counter runs within each epoch: it falls where the epoch rises, and nowhere else but for a restart."""
    if len(step) == 0 or (epoch != np.rint(epoch)).any():
        return False
    rises = np.diff(epoch) > 0
    return bool(rises.any()) and bool((np.diff(step)[rises] <= 0).mean() > 0.5)


def _carried(records: Records, training: Mask, format: Format) -> Stepping | None:
    """The step from the lines above: a line of its own, the frame of a bar, the heading of an epoch."""
    if not training.any():
        return None
    of_main = records.main
    for what in ("step", BAR, "epoch"):
        key_of = {i: _carrier(layout, what) for i, layout in enumerate(records.layouts) if not layout.in_table}
        keys = sorted({k for k in key_of.values() if k is not None})
        if not keys:
            continue
        step = _gathered(records, key_of)
        if what == BAR:
            # Evaluation has bars too; those of training are the ones that stand above its lines.
            total = np.where(np.isfinite(step), records.dense(BAR_TOTAL), np.nan)
            above = _filled(total)[of_main]
            if not np.isfinite(above).any():
                continue
            sizes, times = np.unique(above[np.isfinite(above)], return_counts=True)
            step[total != sizes[np.argmax(times)]] = np.nan
        carried = _filled(step)
        below = None
        if what == "step" and not np.isfinite(carried[of_main][0]):
            # Nothing stands above the first line: where each has a step below it, that is its own.
            below = _filled(step[::-1])[::-1]
            carried = below if np.isfinite(below[of_main]).all() else carried
        at_main = carried[of_main]
        found = at_main[np.isfinite(at_main)]
        if format.running_mean:
            found = np.unique(found)
        # A bar that stands still between two lines is not in step with them: the two streams were buffered apart.
        if len(found) >= _CARRIED * (1 if format.running_mean else len(at_main)) and is_counter(found):
            where = "below" if carried is below else "above"
            records.notes.append(f"the step was taken from {'the progress bar' if what == BAR else 'a line of its own'} {where} each line")
            return Stepping("bar" if what == BAR else keys[0], np.where(records.alive, carried, np.nan))
    return None


def _carrier(layout: Layout, what: str) -> str | None:
    """The key of a line that gives its step to those below it."""
    if what == BAR:
        return BAR if layout.step == BAR else None
    if layout.training:
        return None
    if what == "epoch":
        return layout.epoch
    return layout.step if layout.step != BAR else None


def _filled(values: Values) -> Values:
    """Each NaN replaced by the last value before it."""
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), -1))
    return np.where(last >= 0, values[np.maximum(last, 0)], np.nan)
