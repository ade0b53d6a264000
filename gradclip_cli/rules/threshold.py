"""GC2xx: the clipping threshold does not fit the run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradclip_cli.model.detection import Detection
from gradclip_cli.model.finding import Hit, Severity
from gradclip_cli.model.run import GRAD_NORM, MAX_NORM, NormStage, Run, Steps, Values
from gradclip_cli.rules.wording import Unjudged, count, number, times
from gradclip_cli.wording import share

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

    How it decides: At least 90 % of the finite norms from before clipping exceed the max_norm of their step, over at least
    30 logged ones. In a watched loop each clip is judged alone, and a step that it did not bound counts as not clipped. Where
    the log holds norms from after clipping, the share that sits on the bound counts.

    What to do: If it was not meant so, set max_norm above the usual norm (its 95th to 99th percentile).

    When it is wrong: Some recipes clip always on purpose.
    """
    judged = _judged(run)
    norms, bounds = judged.norms, judged.bounds
    clipped = float(np.mean(norms > bounds * (1 - 1e-3) if run.norm_stage is NormStage.POST_CLIP else norms > bounds))
    if clipped < _ALWAYS_FRACTION:
        return []
    median = 2 * float(np.median(norms / 2))  # the sum of two float64 may not be one
    if run.norm_stage is NormStage.POST_CLIP:
        text = f"{share(clipped)} of the steps are clipped: max_norm is {judged.bound}"
    elif judged.varies:
        with np.errstate(over="ignore"):
            usual = times(float(np.median(norms / bounds)))
        text = f"{share(clipped)} of the norms exceed the max_norm of their step ({judged.bound}); half of them are {usual} that or more"
    else:
        usual = times(median / judged.last)
        text = f"{share(clipped)} of the norms exceed max_norm {judged.bound}: their median is {number(median)} ({usual})"
    evidence = {"clipped_fraction": clipped, "max_norm": judged.last, "median_norm": median}
    return [Hit(text, int(judged.steps[0]), int(judged.steps[-1]), evidence)]


def never_clipping(run: Run, found: Detection) -> list[Hit]:
    """A threshold that no step ever came near.

    What it finds: A max_norm far above every norm of the run, or above norms that did explode.

    Why it matters: The guard is not there: a step 10 times the usual would pass untouched.

    How it decides: No finite norm from before clipping exceeds the max_norm of its step over at least 30 logged ones, and the
    largest is below half of it. Where steps exploded (GC101) below max_norm it is a warning.

    What to do: Lower max_norm to a little above the usual norm.

    When it is wrong: In a log that samples the norm (GC301) the clipped steps may lie in between.
    """
    if run.norm_stage is NormStage.POST_CLIP:
        raise Unjudged("the log holds norms from after clipping")
    judged = _judged(run)
    if (judged.norms > judged.bounds).any():
        return []
    closest = float((judged.norms / judged.bounds).max())
    if closest > _NEVER_MARGIN and not found.explosions:
        return []
    largest, steps = float(judged.norms.max()), judged.steps
    text = f"no step was clipped: the largest norm is {number(largest)}, max_norm {judged.bound}"
    if judged.varies:
        text += f", and none is above {share(closest)} of that of its step"
    if found.explosions:
        count = len(found.explosions)
        text += f"; {count} exploding step{'s' if count > 1 else ''} passed below it"
    severity = Severity.WARNING if found.explosions else None
    return [Hit(text, int(steps[0]), int(steps[-1]), {"largest_norm": largest, "max_norm": judged.last}, severity=severity)]


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
    judged = _judged(run, min_points=1)
    where = np.flatnonzero(judged.norms > judged.bounds * (1 + 1e-3))
    if not len(where):
        return []
    largest = float(judged.norms[where].max())
    bound = f"the max_norm of their step ({judged.bound})" if judged.varies else f"max_norm {judged.bound}"
    text = f"{len(where):,} norms from after clipping exceed {bound}, up to {number(largest)}"
    evidence = {"num_points": len(where), "largest_norm": largest, "max_norm": judged.last}
    return [Hit(text, int(judged.steps[where[0]]), int(judged.steps[where[-1]]), evidence)]


@dataclass(frozen=True, eq=False, slots=True)
class _Judged:
    """Finite norms, each with the bound of its step.

    Attributes:
        bounds: inf where none was in force.
        last: The last finite one.
    """

    steps: Steps
    norms: Values
    bounds: Values
    last: float

    @property
    def _finite(self) -> Values:
        return self.bounds[np.isfinite(self.bounds)]

    @property
    def varies(self) -> bool:
        """Several bounds were in force, one after another."""
        return bool(np.ptp(self._finite) > 0)

    @property
    def bound(self) -> str:
        """As it is told."""
        low, high = float(self._finite.min()), float(self._finite.max())
        return f"{number(low)} to {number(high)}" if self.varies else number(self.last)


def _judged(run: Run, min_points: int = _MIN_POINTS) -> _Judged:
    """The norms that can be held against a bound: those of steps whose bound is not known, or is none, are left out.

    Raises:
        Unjudged: Where there are too few, or no bound at all.
    """
    series, scheduled = run.series[GRAD_NORM], run.series.get(MAX_NORM)
    if scheduled is None:
        if run.max_norm is None:
            raise Unjudged("no max_norm is known")
        bounds = np.full(len(series), run.max_norm)
    else:
        bounds = np.full(len(series), np.nan)
        _, ours, theirs = np.intersect1d(series.steps, scheduled.steps, assume_unique=True, return_indices=True)
        bounds[ours] = scheduled.values[theirs]
    there = np.isfinite(series.values) & (bounds > 0)
    finite = bounds[np.isfinite(bounds) & (bounds > 0)]
    if not len(finite):
        raise Unjudged(f"max_norm is {number(float(bounds[-1]))}: clipping is off" if len(bounds) else "no gradient norm")
    if np.count_nonzero(there) < min_points:
        raise Unjudged(f"only {count(int(np.count_nonzero(there)), 'finite gradient norm')}; it takes {min_points}")
    return _Judged(series.steps[there], series.values[there], bounds[there], float(finite[-1]))
