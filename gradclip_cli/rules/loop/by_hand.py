"""The bound of a loop that clips by hand, for the rules that judge the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradclip_cli.model import GRAD_NORM, Run
from gradclip_cli.rules.loop.view import View, views

# Bounds that move with the norms are no number to hold them against.
_SAME = 2e-2


def with_bound_by_hand(run: Run) -> Run:
    """The run with the bound that its own code clips by, and the norms from before that; as it was where it has none."""
    series = run.grad_norm
    if run.max_norm is not None or series is None or run.recorded is None:
        return run
    for view in views(run):
        before = {u.u + 1: c.before for u in view.taken for c in view.acting(u)[:1] if c.by_hand}
        bounds = _bounds(view)
        if bounds and max(bounds) - min(bounds) <= _SAME * max(bounds) and {u.u + 1 for u in view.taken} >= set(series.steps.tolist()):
            values = [before.get(step, value) for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True)]
            raw = replace(series, values=np.array(values))
            return replace(run, series={**run.series, GRAD_NORM: raw}, max_norm=max(bounds))
    return run


def _bounds(view: View) -> list[float]:
    if view.unreached is not None:
        return [] if view.dropped else [view.unreached.bound]
    return [c.bound for u in view.taken for c in view.acting(u) if c.by_hand]
