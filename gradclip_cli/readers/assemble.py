"""Log -> Run: decide which key is what, and put every series on a strictly increasing step axis."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np

from gradclip_cli.errors import GradclipError
from gradclip_cli.model import (
    CLIP_COEF,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    LR,
    TENSOR_PREFIX,
    Damage,
    NormStage,
    Overflow,
    Rewind,
    Run,
    Sampling,
    Series,
    Steps,
    Values,
)
from gradclip_cli.readers import names, steps
from gradclip_cli.readers.log import Column, Log, Wanted
from gradclip_cli.readers.stage import pile_up

_ROLES = (LOSS, GRAD_NORM, LR, LOSS_SCALE, CLIP_COEF)
# Points of history before a resume that judging the abandoned part needs.
_BRANCH_HISTORY = 600
# A stretch this short before a restart is a false start, not a run.
_MIN_ATTEMPT = 3
_MAX_KEPT_BRANCHES = 20


def assemble(source: str, log: Log, wanted: Wanted) -> list[Run]:
    """The runs in one log: one, or several where the step counter began anew.

    Args:
        source: What to call it in reports.

    Raises:
        GradclipError: Where a wanted key is not there, or neither a loss nor a gradient norm is found.
    """
    notes = list(log.notes)
    keys = _pick_keys(source, log, wanted, notes)
    main = next((keys[r] for r in (LOSS, GRAD_NORM) if r in keys), None)
    if main is None:
        if log.overflows:
            return [_without_series(source, log, notes)]
        raise _nothing_found(source, log)
    logged = _logged_bound(log)
    log = replace(log, max_norm=log.max_norm if logged is None else logged)
    log = _oldest_first(log, wanted, main, notes)
    axis = _axis(source, log, wanted, main, notes)
    _credible(source, log, wanted, keys, axis)
    columns = {name: _on_axis(log.columns[key], axis) for name, key in keys.items()}
    if axis.lost:
        notes.append(
            f"{axis.lost} logged row{'s have' if axis.lost > 1 else ' has'} no step and {'were' if axis.lost > 1 else 'was'} left out"
        )
    columns = {name: c for name, c in columns.items() if len(c.steps)}
    if not columns:
        raise GradclipError(f"{source}: no value of {main!r} stands beside a step", hint="name the step with --step KEY")
    main_name = LOSS if LOSS in columns else next(iter(columns))
    columns = _running_steps(log, axis, columns, main_name, notes)
    return _split(source, log, keys, columns, main_name, axis.known, notes)


@dataclass(frozen=True, eq=False, slots=True)
class _Points:
    """A series in logged order."""

    rows: Steps
    steps: Steps
    values: Values


@dataclass(frozen=True, eq=False, slots=True)
class _Axis:
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


def _pick_keys(source: str, log: Log, wanted: Wanted, notes: list[str]) -> dict[str, str]:
    """Series name -> key."""
    num_points = {k: int(np.count_nonzero(np.isfinite(c.values))) for k, c in log.columns.items() if len(c.values)}
    keys: dict[str, str] = {}
    for role in _ROLES:
        asked = {LOSS: wanted.loss, GRAD_NORM: wanted.grad_norm, LR: wanted.lr}.get(role)
        if asked is not None:
            keys[role] = _asked_key(source, asked, log)
            continue
        if log.roles.get(role) in num_points:
            keys[role] = log.roles[role]
            continue
        found = [k for k in names.candidates(role, num_points) if k not in (wanted.loss, wanted.grad_norm, wanted.lr, wanted.step)]
        if found:
            keys[role] = found[0]
            others = [k for k in found[1:] if role in (LOSS, GRAD_NORM)]
            if others:
                notes.append(f"took {found[0]!r} for the {_spoken(role)}; also there: {_listed(others)}")
    if LOSS not in keys and wanted.grad_norm is None:
        parts = [k for k in num_points if names.is_loss_like(k)]
        if len(parts) == 1:
            keys[LOSS] = parts[0]
            notes.append(f"took {parts[0]!r} for the loss, the only key like one")
        elif parts:
            notes.append(f"no total loss among {_listed(parts)}; name one with --loss KEY")
    if LOSS not in keys and GRAD_NORM not in keys:
        _by_file_name(source, num_points, keys, notes)
    for key in num_points:
        if (tensor := names.tensor_of(key)) is not None and key not in keys.values():
            keys[TENSOR_PREFIX + tensor] = key
    return keys


# Formats that anything may be written in; the others are known to be training runs by their very shape.
_OPEN_FORMATS = ("csv", "json-lines", "parquet", "text")
# Columns beside a lone loss that speak of a training.
_TRAINING_WORDS = re.compile(
    r"(?:^|_)(?:epochs?|lr|learning_rate|acc|accuracy|val_loss|valid_loss|eval_loss|perplexity|ppl|tokens|grad)(?:_|$)"
)


def _credible(source: str, log: Log, wanted: Wanted, keys: Mapping[str, str], axis: _Axis) -> None:
    """Refuse to see a run where a column is called `loss` and nothing else speaks of a training (insurance, packets, a sweep).

    Raises:
        GradclipError: Naming what to say if it is one all the same.
    """
    if log.format not in _OPEN_FORMATS or wanted.loss or wanted.grad_norm or wanted.step:
        return
    loss = keys.get(LOSS)
    guessed = loss is not None and loss != log.roles.get(LOSS) and names.rank(LOSS, loss) is None and names.is_loss_like(loss)
    plain = GRAD_NORM in keys and names.words(keys[GRAD_NORM]) in ("norm", "total_norm", "global_norm")
    plain_norm = plain and LOSS not in keys
    if not guessed and not plain_norm and (axis.known or (LOSS in keys and GRAD_NORM in keys and not plain)):
        return
    if LOSS in keys and axis.known and (LR in keys or GRAD_NORM in keys):
        return
    others = [names.words(k) for k in log.columns if k not in keys.values()]
    if not plain_norm and any(_TRAINING_WORDS.search(w) for w in others) and (axis.known or not guessed):
        return
    name, option = (LOSS, "--loss") if LOSS in keys else (GRAD_NORM, "--grad-norm")
    raise GradclipError(
        f"{source}: {keys[name]!r} may be a {_spoken(name)}, but nothing else here speaks of a training run (no step, no learning rate)",
        hint=f"if it is one, say so with {option} {keys[name]!r}",
    )


def _by_file_name(source: str, num_points: Mapping[str, int], keys: dict[str, str], notes: list[str]) -> None:
    """A table with one `Value` column is one tag, and its file is called after it (`run-x-tag-train_loss.csv`)."""
    value = next((k for k in num_points if k.strip().lower() in ("value", "values")), None)
    if value is None:
        return
    stem = re.sub(r"^.*?-tag-", "", PurePath(source).stem)
    for role in (LOSS, GRAD_NORM):
        tails = [stem, *("_".join(re.split(r"[-_.\s]+", stem)[i:]) for i in range(8))]
        if any(names.rank(role, tail) is not None for tail in tails if tail):
            keys[role] = value
            notes.append(f"took {value!r} for the {_spoken(role)} after the file's name")
            return


def _asked_key(source: str, asked: str, log: Log) -> str:
    if asked in log.columns:
        return asked
    same = [k for k in log.columns if names.words(k) == names.words(asked)]
    if len(same) == 1:
        return same[0]
    near = names.nearest(asked, log.columns)
    hint = f"did you mean {', '.join(map(repr, near))}?" if near else f"keys found: {_listed(list(log.columns), 20)}"
    raise GradclipError(f"{source}: no key {asked!r} in this log", hint=hint)


def _nothing_found(source: str, log: Log) -> GradclipError:
    found = list(log.columns)
    guesses = [k for k in found if names.is_loss_like(k) or names.is_norm_like(k)]
    guesses += [k for k in found if k not in guesses and ("loss" in k.lower() or "norm" in k.lower())]
    if guesses:
        hint = f"name one with --loss or --grad-norm; the nearest are {_listed(guesses, 8)}"
    elif found:
        hint = f"name one with --loss KEY or --grad-norm KEY; keys found: {_listed(found, 20)}"
    else:
        hint = "is this the log of a training run?"
    empty = next((f"; {n}" for n in log.notes if "holds no numbers" in n or "has no value in any row" in n), "")
    return GradclipError(
        f"{source}: found neither a training loss nor a gradient norm among {len(found)} keys ({log.format}){empty}", hint=hint
    )


def _without_series(source: str, log: Log, notes: Sequence[str]) -> Run:
    return Run(source, log.format, {}, overflows=log.overflows, damage=log.damage, notes=tuple(notes))


def _logged_bound(log: Log) -> float | None:
    """max_norm, where it is logged beside the series and never changes."""
    for key, column in log.columns.items():
        if names.rank("max_norm", key) is not None and len(column.values) > 1 and np.ptp(column.values) == 0 and column.values[0] > 0:
            return float(column.values[0])
    return None


# Steps ---------------------------------------------------------------------------------------------------------------


def _oldest_first(log: Log, wanted: Wanted, main: str, notes: list[str]) -> Log:
    """The rows turned round where the step counts down: a table sorted with the newest row first."""
    if log.by_step:
        return log
    keys = (
        [wanted.step] if wanted.step else [log.step_key] if log.step_key else [k for k in log.columns if names.rank("step", k) is not None]
    )
    rows = log.columns[main].at
    num_rows = 1 + max(int(c.at[-1]) for c in log.columns.values() if len(c.at))
    for key in keys:
        if key not in log.columns:
            continue
        values = _dense(log.columns[key], num_rows)[rows]
        if len(values) > 2 and (np.diff(values) < 0).all():
            notes.append(f"{key!r} counts down: the rows were turned round")
            turned = {k: replace(c, at=num_rows - 1 - c.at[::-1], values=c.values[::-1]) for k, c in log.columns.items()}
            return replace(log, columns=turned)
    return log


def _axis(source: str, log: Log, wanted: Wanted, main: str, notes: list[str]) -> _Axis:
    if log.by_step:
        return _Axis(None, None, known=True)
    rows = log.columns[main].at
    num_rows = 1 + max((int(c.at[-1]) for c in log.columns.values() if len(c.at)), default=-1)
    epoch_key = _epoch_key(log)
    epochs = None if epoch_key is None else _dense(log.columns[epoch_key], num_rows)
    if wanted.step is not None:
        order = [_asked_key(source, wanted.step, log)]
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
        if log.columns[key].rounded and (exact := _undo_rounding(of_row, rows)) is not None:
            notes.append(f"{key!r} is printed rounded; the steps in between were spread evenly")
            of_row = exact
        if wanted.step is None and names.rank("step", key) == 3 and log.step_key is None:
            notes.append("the log counts epochs, not steps: one point an epoch")
        lost = int(np.count_nonzero(of_row[rows] < 0))
        return _Axis(of_row, epochs, known=True, lost=lost)
    if wanted.step is not None:
        raise GradclipError(f"{source}: {refused[0]}; expected a step counter beside {main!r}")
    why = f"no step counter was found ({'; '.join(refused[:3])})" if refused else "the log has no step counter"
    notes.append(f"{why}: rows are counted instead")
    return _Axis(None, epochs, known=False)


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


def _on_axis(column: Column, axis: _Axis) -> _Points:
    if axis.of_row is None:
        return _Points(column.at, column.at, column.values)
    at = axis.of_row[column.at]
    keep = at >= 0
    if keep.all():
        return _Points(column.at, at, column.values)
    return _Points(column.at[keep], at[keep], column.values[keep])


def _running_steps(log: Log, axis: _Axis, columns: dict[str, _Points], main: str, notes: list[str]) -> dict[str, _Points]:
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


# Attempts ------------------------------------------------------------------------------------------------------------


def _split(
    source: str, log: Log, keys: Mapping[str, str], columns: Mapping[str, _Points], main: str, known: bool, notes: list[str]
) -> list[Run]:
    """One run an attempt."""
    points = columns[main]
    interleaved = steps.is_interleaved(points.steps)
    cuts = [] if interleaved else steps.restarts(points.steps)
    if interleaved:
        notes.append("several writers appended to this log: each step is there more than once; the first value of a step was kept (GC304)")
    pieces: list[dict[str, _Points]] = []
    if cuts and log.by_step:
        own = {name: steps.restarts(p.steps) for name, p in columns.items()}
        same = {name: c for name, c in own.items() if len(c) == len(cuts)}
        bounds_of = {name: [0, *c, len(columns[name].steps)] for name, c in same.items()}
        pieces += [{n: _slice(columns[n], b[i], b[i + 1]) for n, b in bounds_of.items()} for i in range(len(cuts) + 1)]
    elif cuts:
        bounds = [0, *points.rows[cuts].tolist(), np.iinfo(np.int64).max]
        pieces += [
            {n: _slice(p, *np.searchsorted(p.rows, [low, high]).tolist()) for n, p in columns.items()}
            for low, high in zip(bounds, bounds[1:], strict=False)
        ]
    else:
        pieces.append(dict(columns))
    kept = [p for p in pieces if len(p[main].steps) >= _MIN_ATTEMPT] or pieces[-1:]
    if len(kept) < len(pieces):
        notes.append(f"false starts of fewer than {_MIN_ATTEMPT} points were left out: {len(pieces) - len(kept)}")
    runs = []
    for i, piece in enumerate(kept, 1):
        own_notes = list(notes)
        name = source
        if len(kept) > 1:
            name = f"{source}#{i}"
            own_notes.append(f"part {i} of {len(kept)}: the step counter began anew in this source (GC304)")
        last = i == len(kept)
        runs.append(_run(name, log, keys, piece, main, known, interleaved, own_notes, last=last))
    return runs


def _slice(p: _Points, low: int, high: int) -> _Points:
    return _Points(p.rows[low:high], p.steps[low:high], p.values[low:high])


def _run(
    source: str,
    log: Log,
    keys: Mapping[str, str],
    piece: Mapping[str, _Points],
    main: str,
    known: bool,
    interleaved: bool,
    notes: list[str],
    *,
    last: bool,
) -> Run:
    series: dict[str, Series] = {}
    jumps: dict[str, list[steps.Jump]] = {}
    for name, p in piece.items():
        if not len(p.steps):
            continue
        index: np.ndarray[tuple[int], np.dtype[np.intp]] | np.ndarray[tuple[int], np.dtype[np.bool_]]
        if interleaved:
            index = steps.first_of_each(p.steps, p.values)
        else:
            index, jumps[name], repeats = steps.surviving(p.steps)
            if name == main and repeats:
                notes.append(f"{repeats} step{'s were' if repeats > 1 else ' was'} logged twice in a row; the later value was kept")
        series[name] = Series(name, keys[name], p.steps[index], p.values[index], log.sampling.get(name, Sampling.UNKNOWN))
    rewinds = _rewinds(piece, jumps, keys, main)
    stage, reason, bound = _stage(log, series)
    return Run(
        source,
        log.format,
        series,
        norm_stage=stage,
        stage_reason=reason,
        max_norm=bound,
        steps_known=known,
        rewinds=rewinds,
        overflows=log.overflows if last else (),
        damage=log.damage if last else (),
        notes=tuple(dict.fromkeys(notes)),
    )


def _rewinds(
    piece: Mapping[str, _Points], jumps: Mapping[str, Sequence[steps.Jump]], keys: Mapping[str, str], main: str
) -> tuple[Rewind, ...]:
    """The last jumps of the main series, each with the series as they stood before it."""
    out = []
    seen: Counter[tuple[int, int]] = Counter()
    of_main = jumps.get(main, ())
    for k, jump in enumerate(of_main):
        # A job may fall back to one step again and again: the n-th such jump of each series is the same resume.
        where = (jump.resumed_at, jump.last_before)
        nth = seen[where]
        seen[where] += 1
        if k < len(of_main) - _MAX_KEPT_BRANCHES:
            continue
        branch: dict[str, Series] = {}
        for name in dict.fromkeys((main, LOSS, GRAD_NORM, LR)):
            own = [j for j in jumps.get(name, ()) if (j.resumed_at, j.last_before) == where]
            if nth < len(own):
                p = piece[name]
                index = steps.branch_before(p.steps, own[nth].index, _BRANCH_HISTORY)
                branch[name] = Series(name, keys[name], p.steps[index], p.values[index])
        discarded = int(np.count_nonzero(branch[main].steps >= jump.resumed_at))
        out.append(Rewind(jump.resumed_at, jump.last_before, discarded, branch))
    return tuple(out)


def _stage(log: Log, series: Mapping[str, Series]) -> tuple[NormStage, str, float | None]:
    norm = series.get(GRAD_NORM)
    if norm is None:
        return NormStage.UNKNOWN, "", log.max_norm
    if log.norm_stage is not NormStage.UNKNOWN:
        return log.norm_stage, log.stage_reason or f"{log.format} logs it so", log.max_norm
    if (named := names.stage_of(norm.key)) is not NormStage.UNKNOWN:
        return named, f"the key is called {norm.key!r}", log.max_norm
    if (bound := pile_up(norm.values)) is not None:
        return NormStage.POST_CLIP, f"the norms pile up at their maximum, {bound:.4g}", log.max_norm or bound
    return NormStage.UNKNOWN, "", log.max_norm


# Several files of one run --------------------------------------------------------------------------------------------


def merge(logs: Sequence[Log]) -> Log:
    """One log from the files of one run, in the order they were written.

    Files that share a key go on one behind the other; files of different keys (a metric each) stand side by side.
    """
    if len(logs) == 1:
        return logs[0]
    notes = [n for log in logs for n in log.notes]
    if len({log.by_step for log in logs}) > 1:
        # Steps and counted rows do not mix; keep the kind that holds more.
        size = {kind: sum(len(c.values) for log in logs if log.by_step is kind for c in log.columns.values()) for kind in (True, False)}
        kept = size[True] >= size[False]
        left_out = [k for log in logs if log.by_step is not kept for k in log.columns]
        notes.append(f"{_listed(left_out)} {'without' if kept else 'with'} steps, left out beside the others")
        logs = [log for log in logs if log.by_step is kept]
    goes_on = len({k for log in logs for k in log.columns}) < sum(len(log.columns) for log in logs)
    parts: dict[str, list[Column]] = {}
    offset = 0
    for log in logs:
        for key, c in log.columns.items():
            parts.setdefault(key, []).append(c if log.by_step else replace(c, at=c.at + offset))
        if goes_on:
            offset += max((int(c.at[-1]) + 1 for c in log.columns.values() if len(c.at)), default=0)
    columns = {
        key: cs[0]
        if len(cs) == 1
        else Column(np.concatenate([c.at for c in cs]), np.concatenate([c.values for c in cs]), any(c.rounded for c in cs))
        for key, cs in parts.items()
    }
    damage: tuple[Damage, ...] = tuple(d for log in logs for d in log.damage)
    overflows: tuple[Overflow, ...] = tuple(o for log in logs for o in log.overflows)
    if len(logs) > 1:
        notes.append(f"read from {len(logs)} files")
    return replace(logs[0], columns=columns, damage=damage, overflows=overflows, notes=tuple(dict.fromkeys(notes)))


def _spoken(role: str) -> str:
    return "gradient norm" if role == GRAD_NORM else role


def _listed(keys: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(repr(k) if len(k) <= 80 else repr(k[:77] + "...") for k in keys[:most])
    return shown + (f" and {len(keys) - most} more" if len(keys) > most else "")
