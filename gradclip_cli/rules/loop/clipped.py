"""The norms and the bound of a watched loop as its clips had them, for the rules that judge the bound."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gradclip_cli.detect.loop import Update
from gradclip_cli.model.run import GRAD_NORM, Run
from gradclip_cli.rules.loop.view import View, views
from gradclip_cli.rules.wording import Unjudged

# Bounds that move with the norms are no number to hold them against.
_SAME = 2e-2


def as_clipped(run: Run) -> Run:
    """The run with the norms that its clips compared with their bound, and with that bound where it clips by hand.

    What is recorded is the norm of one optimizer's gradients; a clip may cover more, and what code of the user's own does to
    gradients before they are used is recorded as if they came so.
    """
    series = run.grad_norm
    try:
        found = views(run)
    except Unjudged:
        return run
    for view in found:
        if series is None or not {u.u + 1 for u in view.taken} >= set(series.steps.tolist()):
            continue
        bound = run.max_norm if run.max_norm is not None else _bound_by_hand(view)
        if bound is None:
            continue
        norms = {u.u + 1: norm for u in view.taken if not math.isnan(norm := _compared(view, u))}
        values = [norms.get(step, value) for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True)]
        return replace(run, series={**run.series, GRAD_NORM: replace(series, values=np.array(values))}, max_norm=bound)
    return run


def _compared(view: View, u: Update) -> float:
    """The norm that the one clip of an update scaled by; nan where there is none, or it is not the L2 norm of what it clipped."""
    clips = view.acting(u)
    return clips[0].returned if len(clips) == 1 and clips[0].p == 2 and clips[0].scale is None else math.nan


def _bound_by_hand(view: View) -> float | None:
    bounds = [c.bound for u in view.taken for c in view.acting(u) if c.by_hand]
    if view.unreached is not None and not view.dropped:
        bounds.append(view.unreached.bound)
    return max(bounds) if bounds and max(bounds) - min(bounds) <= _SAME * max(bounds) else None
