"""From the place of a value in the log to its step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import Steps, Values
from gradclip_cli.readers import keys, names, steps
from gradclip_cli.readers.log import Column, Log, Wanted

# The rank of an epoch among the keys of a step.
_EPOCHS = 3


@dataclass(frozen=True, eq=False, slots=True)
class Points:
    """A series in logged order."""

    rows: Steps
    steps: Steps
    values: Values


@dataclass(frozen=True, eq=False, slots=True)
class Axis:
    """How `Column.at` becomes a step.

    Attributes:
        of_row: int64 step of each row, -1 where the row has none; None where `at` is the step itself.
        epochs: Epoch of each row (NaN where not logged), or None.
        known: False where rows are counted instead.
        lost: Rows left out for want of a step.
    """

    of_row: Steps | None
    epochs: Values | None
    known: bool
    lost: int = 0


def oldest_first(log: Log, wanted: Wanted, main: str, notes: list[str]) -> Log:
    """The rows turned round where the step counts down: a table sorted with the newest row first."""
    if log.by_step:
        return log
    counters = (
        [wanted.step] if wanted.step else [log.step_key] if log.step_key else [k for k in log.columns if names.rank("step", k) is not None]
    )
    rows = log.columns[main].at
    num_rows = 1 + max(int(c.at[-1]) for c in log.columns.values() if len(c.at))
    for key in counters:
        if key not in log.columns:
            continue
        values = _dense(log.columns[key], num_rows)[rows]
        if len(values) > 2 and (np.diff(values) < 0).all():
            notes.append(f"{key!r} counts down: the rows were turned round")
            turned = {k: replace(c, at=num_rows - 1 - c.at[::-1], values=c.values[::-1]) for k, c in log.columns.items()}
            return replace(log, columns=turned)
    return log


def without_constant_step(log: Log, main: str, notes: list[str]) -> Log:
    """The points counted where all were logged for one step (`add_scalar` without a step)."""
    steps_of_main = log.columns[main].at
    if not log.by_step or len(steps_of_main) < 3 or (steps_of_main != steps_of_main[0]).any():
        return log
    notes.append(f"every value of {main!r} was logged for step {steps_of_main[0]}")
    counted = {k: replace(c, at=np.arange(len(c.at), dtype=np.int64)) for k, c in log.columns.items()}
    return replace(log, columns=counted, by_step=False)


def find(source: str, log: Log, wanted: Wanted, main: str, notes: list[str]) -> Axis:
    """The steps of the rows, from the key that counts them.

    Raises:
        GradclipError: Where the key that the user named does not.
    """
    if log.by_step:
        return Axis(None, None, known=True)
    rows = log.columns[main].at
    num_rows = 1 + max((int(c.at[-1]) for c in log.columns.values() if len(c.at)), default=-1)
    epoch_key = _epoch_key(log)
    epochs = None if epoch_key is None else _dense(log.columns[epoch_key], num_rows)
    if wanted.step is not None:
        order = [keys.asked(source, wanted.step, log)]
    elif log.step_key is not None:
        order = [log.step_key] if log.step_key in log.columns else []
    else:
        ranked = [(r, k) for k in log.columns if (r := names.rank("step", k)) is not None]
        order = [k for _, k in sorted(ranked, key=lambda t: t[0])]
    refused: list[str] = []
    for key in order:
        of_row = _step_of_row(log.columns[key], num_rows, rows, strict=key not in (wanted.step, log.step_key))
        if isinstance(of_row, str):
            refused.append(f"{key!r} {of_row}")
            continue
        if wanted.step is None and log.step_key is None and names.rank("step", key) == _EPOCHS and _stands_still(of_row[rows]):
            refused.append(f"{key!r} is the same in most rows")
            continue
        if log.columns[key].rounded and (exact := _undo_rounding(of_row, rows)) is not None:
            notes.append(f"{key!r} is printed rounded; the steps in between were spread evenly")
            of_row = exact
        if wanted.step is None and names.rank("step", key) == _EPOCHS and log.step_key is None:
            notes.append("the log counts epochs, not steps: one point an epoch")
        lost = int(np.count_nonzero(of_row[rows] < 0))
        return Axis(of_row, epochs, known=True, lost=lost)
    if wanted.step is not None:
        raise GradclipError(f"{source}: {refused[0]}; expected a step counter beside {main!r}")
    why = f"no step counter was found ({'; '.join(refused[:3])})" if refused else "the log has no step counter"
    notes.append(f"{why}: rows are counted instead")
    return Axis(None, epochs, known=False)


def _stands_still(values: Steps) -> bool:
    """Whether a counter that never goes back repeats each number."""
    return len(values) > 2 and bool((np.diff(values) >= 0).all()) and len(np.unique(values)) < 0.5 * len(values)


def _epoch_key(log: Log) -> str | None:
    return next((k for k in log.columns if names.words(k) in ("epoch", "epochs", "epoch_num", "epoch_idx")), None)


def _dense(column: Column, num_rows: int) -> Values:
    out = np.full(num_rows, np.nan)
    inside = column.at < num_rows
    out[column.at[inside]] = column.values[inside]
    return out


def _step_of_row(column: Column, num_rows: int, rows: Steps, *, strict: bool) -> Steps | str:
    """int64 step of each row, -1 where there is none; or why the column is no step counter of these rows."""
    dense = _dense(column, num_rows)
    at_main = dense[rows]
    logged = np.isfinite(at_main)
    if np.count_nonzero(logged) < 0.5 * len(rows):
        return "is not logged beside most values"
    values = at_main[logged]
    if (np.abs(values) >= 2.0**53).any():
        return "holds numbers too large for a step"
    if (values < 0).any():
        return "holds negative numbers"
    if (np.abs(values - np.rint(values)) > 1e-6 * np.maximum(1.0, np.abs(values))).any():
        return "holds fractions"
    if strict and not column.rounded and len(values) > 2 and not _counts_up(values):
        return "does not count up"
    good = np.isfinite(dense) & (dense >= 0) & (np.abs(dense) < 2.0**53)
    out = np.full(num_rows, -1, np.int64)
    out[good] = np.rint(dense[good]).astype(np.int64)
    return out


def _counts_up(values: Values) -> bool:
    """Whether this is a counter, be it one that starts again or that several writers share; not a constant or a countdown."""
    delta = np.diff(values)
    if (delta > 0).mean() >= 0.3:
        return True
    distinct = len(np.unique(values))
    if (delta >= 0).mean() >= 0.9:
        return distinct >= 3
    return bool((delta >= 0).mean() > 0.4 and distinct >= 0.3 * len(values))


def _undo_rounding(of_row: Steps, rows: Steps) -> Steps | None:
    used = rows[of_row[rows] >= 0]
    exact = steps.unrounded(of_row[used])
    if exact is None:
        return None
    out = np.full_like(of_row, -1)
    out[used] = exact
    return out


def on_axis(column: Column, axis: Axis) -> Points:
    """A column at its steps; what stands in a row without one is left out."""
    if axis.of_row is None:
        return Points(column.at, column.at, column.values)
    at = axis.of_row[column.at]
    keep = at >= 0
    if keep.all():
        return Points(column.at, at, column.values)
    return Points(column.at[keep], at[keep], column.values[keep])


def over_epochs(log: Log, axis: Axis, columns: dict[str, Points], main: str, notes: list[str]) -> dict[str, Points]:
    """Steps over the whole run where the log counts them within each epoch."""
    if log.by_step or axis.of_row is None:
        return columns
    points = columns[main]
    if (np.diff(points.steps) >= 0).all():
        return columns
    epochs = None if axis.epochs is None else axis.epochs[points.rows]
    if epochs is not None and not np.isfinite(epochs).all():
        epochs = None
    if epochs is None and steps.is_interleaved(points.steps):
        return columns
    running = steps.within_epochs(points.steps, epochs, log.steps_per_epoch, points.values)
    if running is None:
        return columns
    notes.append("the log counts steps within each epoch; they were added up over the epochs")
    of_row = np.full(len(axis.of_row), -1, np.int64)
    of_row[points.rows] = running
    # A row without the main series takes the step of the row before it.
    filled = np.maximum.accumulate(np.where(of_row >= 0, np.arange(len(of_row)), 0))
    of_row = of_row[filled]
    return {name: replace(p, steps=of_row[p.rows]) for name, p in columns.items()}
