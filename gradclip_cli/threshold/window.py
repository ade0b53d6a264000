"""A part of a run, as if nothing else had been logged."""

from __future__ import annotations

from dataclasses import replace

from gradclip_cli.model.run import Run, Series


def window(run: Run, first: int | None, last: int | None) -> Run:
    """The run from step `first` to step `last`, inclusive; rows where the log has no steps. None is open."""
    if first is None and last is None:
        return run
    return replace(run, series={name: _cut(s, first, last) for name, s in run.series.items()})


def _cut(series: Series, first: int | None, last: int | None) -> Series:
    a = 0 if first is None else int(series.steps.searchsorted(first))
    b = len(series) if last is None else int(series.steps.searchsorted(last, "right"))
    return replace(series, steps=series.steps[a:b], values=series.values[a:b])
