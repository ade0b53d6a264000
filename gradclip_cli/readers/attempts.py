"""From series in logged order to runs: where the step counter went back, what of it is a resume and what a new run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from gradclip_cli.model.run import GRAD_NORM, LOSS, LR, Damage, NormStage, Rewind, Run, Sampling, Series
from gradclip_cli.readers import names, steps
from gradclip_cli.readers.axis import Points
from gradclip_cli.readers.log import Log
from gradclip_cli.readers.stage import pile_up

# Points of history before a resume that judging the abandoned part needs.
_BRANCH_HISTORY = 600
# A stretch this short before a restart is a false start, not a run.
_MIN_ATTEMPT = 3
_MAX_KEPT_BRANCHES = 20


def split(
    source: str, log: Log, keys: Mapping[str, str], columns: Mapping[str, Points], main: str, known: bool, notes: list[str]
) -> list[Run]:
    """One run an attempt."""
    points = columns[main]
    interleaved = steps.is_interleaved(points.steps)
    cuts = [] if interleaved else steps.restarts(points.steps)
    if interleaved:
        notes.append("several writers appended to this log: each step is there more than once; the first value of a step was kept (GC304)")
    pieces: list[dict[str, Points]] = []
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


def _slice(p: Points, low: int, high: int) -> Points:
    return Points(p.rows[low:high], p.steps[low:high], p.values[low:high])


def _run(
    source: str,
    log: Log,
    keys: Mapping[str, str],
    piece: Mapping[str, Points],
    main: str,
    known: bool,
    interleaved: bool,
    notes: list[str],
    *,
    last: bool,
) -> Run:
    series: dict[str, Series] = {}
    jumps: dict[str, list[steps.Jump]] = {}
    damage = log.damage if last else ()
    for name, p in piece.items():
        if not len(p.steps):
            continue
        index: np.ndarray[tuple[int], np.dtype[np.intp]] | np.ndarray[tuple[int], np.dtype[np.bool_]]
        if interleaved:
            index = steps.first_of_each(p.steps, p.values)
            if name == main and (at := steps.disagreement(p.steps, p.values)) is not None:
                what = f"the values of {keys[name]!r} that were logged for one step are as unlike as those of several runs"
                damage += (Damage(f"{'step' if known else 'row'} {at} on", what, "all but the first of each step"),)
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
        damage=damage,
        notes=tuple(dict.fromkeys(notes)),
        recorded=log.recorded,
    )


def _rewinds(
    piece: Mapping[str, Points], jumps: Mapping[str, Sequence[steps.Jump]], keys: Mapping[str, str], main: str
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
