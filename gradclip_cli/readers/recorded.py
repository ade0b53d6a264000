"""Our own run directories: what `gradclip record` and `gradclip_cli.watch` wrote. Every update is there."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.recorded import RankPart
from gradclip_cli.model.run import (
    CLIP_COEF,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    LR,
    MAX_NORM,
    TENSOR_PREFIX,
    NormStage,
    Overflow,
    Sampling,
    Steps,
    Values,
)
from gradclip_cli.readers.log import Column, Log, Reader, Source, Wanted
from gradclip_cli.readers.shards import whole
from gradclip_cli.runfile import read_recorded
from gradclip_cli.runfile.layout import RUN_FILE, SCHEMA
from gradclip_cli.runfile.reading import STILL_RUNNING

Rows = npt.NDArray[np.bool_]

_SCHEMA = re.compile(rf'"schema"\s*:\s*"{re.escape(SCHEMA)}"')


def claims(source: Source) -> bool:
    """By the name of the file and its schema."""
    return source.path.name == RUN_FILE and bool(_SCHEMA.search(source.text))


def read(source: Source, wanted: Wanted) -> Log:
    """The series of the run, as rank 0 saw them (or the first rank there is), with all ranks in `recorded`.

    Norms of sharded gradients are those over all shards, where every rank is there.

    Raises:
        GradclipError: Where no update was recorded.
    """
    directory = source.path.parent
    recorded, damage = read_recorded(directory)
    part, note = whole(recorded)
    if not len(part.steps):
        how = f" ({part.ended})" if part.ended else ""
        raise GradclipError(
            f"{directory}: no optimizer update was recorded{how}",
            hint="did the script come as far as its first optimizer step?",
        )
    notes = [note] if note else []
    if part.rank:
        notes.append(f"nothing of rank 0 is there: these are the values of rank {part.rank}")
    if part.ended == STILL_RUNNING:
        notes.append("the script was still running when this was read")
    elif part.ended not in ("", "finished"):
        notes.append(f"the script ended so: {part.ended}")
    if part.header.get("fault"):
        notes.append(f"what came after was not recorded: {part.header['fault']}")
    rows = _rows_of_one_optimizer(part, notes)
    columns = _columns(part, rows)
    skipped = _column(part, "skipped")[rows] == 1
    if skipped.any():
        count = int(skipped.sum())
        which = "1 update that the loss scaler skipped has" if count == 1 else f"{count:,} updates that the loss scaler skipped have"
        notes.append(f"{which} no gradient norm here")
    stage, reason = NormStage.PRE_CLIP, "gradclip took it there"
    if unseen := _norms_not_seen_before(part, columns, rows & (_column(part, "skipped") != 1)):
        columns[GRAD_NORM], note = unseen
        stage, reason = NormStage.UNKNOWN, ""
        notes.append(note)
    return Log(
        "recorded",
        columns,
        by_step=True,
        roles={role: role for role in (LOSS, GRAD_NORM, LR, LOSS_SCALE, CLIP_COEF, MAX_NORM) if role in columns},
        norm_stage=stage,
        stage_reason=reason,
        sampling=dict.fromkeys(columns, Sampling.INSTANT),
        max_norm=_last_bound(part, rows),
        overflows=_overflows(part, skipped, rows),
        damage=damage,
        notes=tuple(notes),
        recorded=recorded,
    )


def _column(part: RankPart, name: str) -> Values:
    return part.columns.get(name, np.full(len(part.steps), np.nan))


def _rows_of_one_optimizer(part: RankPart, notes: list[str]) -> Rows:
    """Which updates to show where several optimizers take turns: those of the one with the most, the first of equals."""
    optimizer = _column(part, "optimizer")
    indices, counts = np.unique(optimizer[np.isfinite(optimizer)], return_counts=True)
    if len(indices) < 2:
        return np.ones(len(part.steps), np.bool_)
    chosen = indices[int(np.argmax(counts))]
    others = ", ".join(f"{i:g}" for i in indices if i != chosen)
    notes.append(f"{len(indices)} optimizers take turns: these are the updates of optimizer {chosen:g}; not judged here: {others}")
    rows: Rows = optimizer == chosen
    return rows


def _norms_not_seen_before(part: RankPart, columns: Mapping[str, Column], rows: Rows) -> tuple[Column, str] | None:
    """The norms that optimizers used in the place of those from before clipping that were not seen, and a note; None where all were.

    A script that clips by its own code changes gradients without a call that could be seen, and most where it matters most.
    """
    used = _present(part, "grad_norm_used", rows)
    if used is None:
        return None
    before = columns.get(GRAD_NORM)
    seen = np.isin(used.at, [] if before is None else before.at)
    if seen.all():
        return None
    count = int((~seen).sum())
    values = used.values.copy()
    if before is not None:
        values[seen] = before.values[np.isin(before.at, used.at)]
    where = "here" if count == len(seen) else f"in {count:,} of {len(seen):,} updates"
    note = (
        f"something other than a norm clip (code of the script's own, say) may have changed the gradients before the step {where}: the "
        "norms are then those the optimizer used; `gradclip verify SCRIPT` tells what it was"
    )
    return Column(used.at, values), note


def _present(part: RankPart, name: str, rows: Rows) -> Column | None:
    """A column where an update has it; None where none has."""
    values, marked = _column(part, name), part.columns.get(f"has_{name}")
    there = rows & (~np.isnan(values) if marked is None else marked == 1)
    return _where(part.steps, values, there)


def _where(steps: Steps, values: npt.NDArray[np.floating], there: Rows) -> Column | None:
    # Most columns are there in every update, and may share its steps.
    if there.all() and len(there):
        return Column(steps, values.astype(np.float64))
    return Column(steps[there], values[there].astype(np.float64)) if there.any() else None


def _columns(part: RankPart, rows: Rows) -> dict[str, Column]:
    # A skipped update was no update: the norm that made the scaler skip it is its own business.
    made = rows & (_column(part, "skipped") != 1)
    found = {
        name: _present(part, name, made if name in (GRAD_NORM, CLIP_COEF) else rows)
        for name in (LOSS, GRAD_NORM, LR, LOSS_SCALE, CLIP_COEF)
    }
    for i, tensor in enumerate(part.tensors):
        norms = part.tensor_norms[:, i]
        found[TENSOR_PREFIX + tensor.name] = _where(part.steps, norms, made & ~np.isnan(norms))
    found[MAX_NORM] = _varying_bound(part, made)
    return {name: column for name, column in found.items() if column is not None}


def _varying_bound(part: RankPart, made: Rows) -> Column | None:
    """The bound of each update, inf where no clip bounded it; None where it is one and the same."""
    bounds = _column(part, MAX_NORM)
    bounds = np.where(np.isfinite(bounds) & (bounds > 0), bounds, np.inf)
    return _where(part.steps, bounds, made) if len(np.unique(bounds[made])) > 1 else None


def _last_bound(part: RankPart, rows: Rows) -> float | None:
    bounds = _column(part, "max_norm")[rows]
    finite = bounds[np.isfinite(bounds) & (bounds > 0)]
    return float(finite[-1]) if len(finite) else None


def _overflows(part: RankPart, skipped: Rows, rows: Rows) -> tuple[Overflow, ...]:
    """Skipped updates, each with the scale that the next update has."""
    steps: Steps = part.steps[rows]
    scale = _column(part, LOSS_SCALE)[rows]
    at = np.flatnonzero(skipped)
    after = [float(scale[i + 1]) if i + 1 < len(scale) and np.isfinite(scale[i + 1]) else None for i in at.tolist()]
    return tuple(Overflow(int(steps[i]), s) for i, s in zip(at.tolist(), after, strict=True))


READER = Reader("recorded", "run directories written by `gradclip record`", claims, read)
