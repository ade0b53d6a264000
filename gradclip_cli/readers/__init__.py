"""Reading runs. One file a format, one row each in the table below; the first reader that claims a file reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import GRAD_NORM, LOSS, Run
from gradclip_cli.readers import csv, golden_values, jsonlines, mlflow, parquet, recorded, tensorboard, text, trainer_state, wandb
from gradclip_cli.readers.assemble import assemble
from gradclip_cli.readers.discover import Unit, units
from gradclip_cli.readers.log import Reader, Wanted
from gradclip_cli.readers.merge import merge
from gradclip_cli.readers.sidecar import max_norm_beside

READERS: tuple[Reader, ...] = (
    recorded.READER,
    tensorboard.READER,
    wandb.READER,
    parquet.READER,
    trainer_state.READER,
    golden_values.READER,
    mlflow.READER,
    jsonlines.READER,
    csv.READER,
    *text.READERS,
)

__all__ = ["READERS", "Wanted", "find", "read", "read_unit"]


def find(path: Path) -> tuple[list[Unit], list[GradclipError]]:
    """The runs below a path, not yet read, and what could not be looked at. Raises GradclipError where there are none."""
    return units(path, READERS)


def read_unit(unit: Unit, wanted: Wanted) -> list[Run]:
    """The runs in the files of one unit.

    Raises:
        GradclipError: Where nothing in them can be read.
    """
    logs = []
    problems: list[GradclipError] = []
    for source in unit.files:
        try:
            log = unit.reader.read(source, wanted)
            logs.append(replace(log, damage=(*log.damage, *source.damage)))
        except GradclipError as e:
            # A traceback keeps the frames' arrays alive, of thousands of files perhaps.
            problems.append(e.with_traceback(None))
    if not logs:
        raise problems[0]
    log = merge(logs)
    if problems:
        log = replace(log, notes=(*log.notes, *(f"left out: {e.message}" for e in problems)))
    if log.max_norm is None and (beside := max_norm_beside(unit.files[0].path)):
        log = replace(log, max_norm=beside[0], notes=(*log.notes, f"max_norm {beside[0]:g} from {beside[1]} beside it"))
    return assemble(unit.name, log, wanted)


def read(path: Path, wanted: Wanted | None = None) -> Iterator[Run | GradclipError]:
    """Every run below a path, as it is read; a file that looked like a run and could not be read comes as its error.

    A run that is there twice (an event file beside the trainer's own state) is given once.

    Raises:
        GradclipError: Where there is nothing to read at all.
    """
    wanted = wanted or Wanted()
    found, problems = find(path)
    if len(found) == 1:
        yield from read_unit(found[0], wanted)
        yield from problems
        return
    results: list[Run | GradclipError] = [*problems]
    by_chance: list[GradclipError] = []
    for unit in found:
        try:
            results.extend(read_unit(unit, wanted))
        except GradclipError as e:
            (results if unit.sure else by_chance).append(e.with_traceback(None))
    runs = _once_each([r for r in results if isinstance(r, Run)])
    if not runs:
        raise next(
            (r for r in results if isinstance(r, GradclipError)),
            by_chance[0] if by_chance else GradclipError(f"{path}: nothing could be read"),
        )
    yield from runs
    yield from (r for r in results if isinstance(r, GradclipError))


def _once_each(runs: list[Run]) -> list[Run]:
    """Runs without the copies of one another: the same loss at the same steps; the one with more series stays."""
    kept: list[Run] = []
    for run in sorted(runs, key=lambda r: -sum(len(s) for s in r.series.values())):
        twin = next((k for k in kept if k.source != run.source and _same(k, run)), None)
        if twin is None:
            kept.append(run)
        else:
            kept[kept.index(twin)] = replace(twin, notes=(*twin.notes, f"the same run is also in {run.source} ({run.format})"))
    return sorted(kept, key=lambda r: r.source)


def _same(a: Run, b: Run) -> bool:
    name = LOSS if LOSS in a.series and LOSS in b.series else GRAD_NORM
    x, y = a.series.get(name), b.series.get(name)
    if x is None or y is None:
        return False
    common, i, j = np.intersect1d(x.steps, y.steps, return_indices=True)
    # Four digits: trainers round the loss in one of the two places.
    return len(common) >= max(3, 0.9 * min(len(x), len(y))) and bool(
        np.allclose(x.values[i], y.values[j], rtol=1e-3, atol=1e-4, equal_nan=True)
    )
