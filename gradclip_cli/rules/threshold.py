"""GC2xx: the clipping threshold does not fit the run."""

from __future__ import annotations

import numpy as np

from gradclip_cli.model.detection import Detection
from gradclip_cli.model.finding import Hit, Severity
from gradclip_cli.model.run import NormStage, Run, Values
from gradclip_cli.rules.wording import Unjudged, count, number, times

_ALWAYS_FRACTION = 0.9
_MIN_POINTS = 30
# Below this share of max_norm even the largest norm is far from ever being clipped.
_NEVER_MARGIN = 0.5


def always_clipping(run: Run, found: Detection) -> list[Hit]:
    """Clipping that acts on practically every step.

    What it finds: A max_norm below nearly all gradient norms of the run.

    Why it matters: It is then no safety net but a step-size limiter: every update is scaled down to the same
    length, and the learning rate in effect is lower by the ratio of the usual norm to max_norm (with
    Adam-like optimizers the constant part of that cancels out).

    How it decides: At least 90 % of the finite norms from before clipping exceed max_norm, over at least 30
    logged ones. Where the log holds norms from after clipping, the share that sits on the bound counts.

    What to do: If it was not meant so, set max_norm above the usual norm (its 95th to 99th percentile).

    When it is wrong: Some recipes clip always on purpose.
    """
    norms, bound = _norms_and_bound(run)
    clipped = float(np.mean(norms > bound * (1 - 1e-3) if run.norm_stage is NormStage.POST_CLIP else norms > bound))
    if clipped < _ALWAYS_FRACTION:
        return []
    median = 2 * float(np.median(norms / 2))  # the sum of two float64 may not be one
    if run.norm_stage is NormStage.POST_CLIP:
        text = f"{clipped:.0%} of the steps are clipped: max_norm is {number(bound)}"
    else:
        text = f"{clipped:.0%} of the norms exceed max_norm {number(bound)}: their median is {number(median)} ({times(median / bound)})"
    steps = run.series["grad_norm"].steps
    return [Hit(text, int(steps[0]), int(steps[-1]), {"clipped_fraction": clipped, "max_norm": bound, "median_norm": median})]


def never_clipping(run: Run, found: Detection) -> list[Hit]:
    """A threshold that no step ever came near.

    What it finds: A max_norm far above every norm of the run, or above norms that did explode.

    Why it matters: The guard is not there: a step 10 times the usual would pass untouched.

    How it decides: No finite norm from before clipping exceeds max_norm over at least 30 logged ones, and the
    largest is below half of it. Where steps exploded (GC101) below max_norm it is a warning.

    What to do: Lower max_norm to a little above the usual norm.

    When it is wrong: In a log that samples the norm (GC301) the clipped steps may lie in between.
    """
    if run.norm_stage is NormStage.POST_CLIP:
        raise Unjudged("the log holds norms from after clipping")
    norms, bound = _norms_and_bound(run)
    largest = float(norms.max())
    if largest > bound or (largest > _NEVER_MARGIN * bound and not found.explosions):
        return []
    steps = run.series["grad_norm"].steps
    text = f"no step was clipped: the largest norm is {number(largest)}, max_norm {number(bound)}"
    if found.explosions:
        count = len(found.explosions)
        text += f"; {count} exploding step{'s' if count > 1 else ''} passed below it"
    severity = Severity.WARNING if found.explosions else None
    return [Hit(text, int(steps[0]), int(steps[-1]), {"largest_norm": largest, "max_norm": bound}, severity=severity)]


def above_max_norm(run: Run, found: Detection) -> list[Hit]:
    """Norms from after clipping that exceed the bound.

    What it finds: A log whose norms are said to be from after clipping, with values above max_norm.

    Why it matters: Either clipping did not act on the gradients the optimizer used, or the log does not hold
    what it says.

    How it decides: A norm counts when it exceeds max_norm by more than 0.1 % (a clipped norm is
    max_norm x G / (G + 1e-6), printed in a few digits).

    What to do: Watch the loop itself; a norm logged as the return value of `clip_grad_norm_` is the one from
    before clipping and may well exceed the bound.

    When it is wrong: Where the log calls a norm clipped that is not.
    """
    if run.norm_stage is not NormStage.POST_CLIP:
        raise Unjudged("the log does not hold norms from after clipping")
    norms, bound = _norms_and_bound(run, min_points=1)
    series = run.series["grad_norm"]
    over = np.isfinite(series.values) & (series.values > bound * (1 + 1e-3))
    if not over.any():
        return []
    where = np.flatnonzero(over)
    text = f"{len(where):,} norms from after clipping exceed max_norm {number(bound)}, up to {number(float(norms.max()))}"
    evidence = {"num_points": len(where), "largest_norm": float(norms.max()), "max_norm": bound}
    return [Hit(text, int(series.steps[where[0]]), int(series.steps[where[-1]]), evidence)]


def _norms_and_bound(run: Run, min_points: int = _MIN_POINTS) -> tuple[Values, float]:
    if run.max_norm is None:
        raise Unjudged("no max_norm is known")
    if not (np.isfinite(run.max_norm) and run.max_norm > 0):
        raise Unjudged(f"max_norm is {number(run.max_norm)}: clipping is off")
    values = run.series["grad_norm"].values
    norms = values[np.isfinite(values)]
    if len(norms) < min_points:
        raise Unjudged(f"only {count(len(norms), 'finite gradient norm')}; it takes {min_points}")
    return norms, run.max_norm
