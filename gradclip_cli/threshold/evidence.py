"""Which of the logged norms are those of a healthy run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradclip_cli.detect import align, detect
from gradclip_cli.detect.baseline import Mask, outside
from gradclip_cli.detect.explosions import RATIO
from gradclip_cli.model.detection import Detection
from gradclip_cli.model.run import LR, NormStage, Run, Sampling, Series, Steps, Values
from gradclip_cli.model.threshold import Excluded
from gradclip_cli.threshold.warmup import Warmup, warmup

AT_BOUND = 1e-3
"""A norm logged after clipping sits on the bound when it is within 0.1 % of it: max_norm x G / (G + 1e-6), printed in a few digits."""


@dataclass(frozen=True, eq=False, slots=True)
class Evidence:
    """The norms of a run, sorted by what they are evidence of. Steps are rows where the log has none.

    Attributes:
        steps, norms: The healthy ones, in the order of the log.
        exploding_steps, exploding: Those within explosions.
        excluded: How many were left out, and why.
        start: Where the warm-up ends.
        diverged_at: First step of a divergence, after which nothing is healthy; None without one.
        ceiling: The bound at which the norms pile up, above which nothing can be seen; None where they do not.
        visible: Share of the healthy norms below the ceiling.
        spacing: Median distance between logged norms in steps; 1 where steps are unknown.
        rising_lr: The learning rate was still being warmed up at the end of the log.
    """

    run: Run
    steps: Steps
    norms: Values
    exploding_steps: Steps
    exploding: Values
    excluded: Excluded
    start: Warmup
    diverged_at: int | None
    ceiling: float | None
    visible: float
    spacing: float
    rising_lr: bool

    @property
    def is_mean(self) -> bool:
        """Whether a logged norm is a mean over several steps."""
        norm = self.run.grad_norm
        return norm is not None and norm.sampling is Sampling.WINDOW_MEAN and self.spacing >= 2


def evidence(run: Run) -> Evidence:
    """Sort the norms of a run that has some."""
    series = run.series["grad_norm"]
    found = detect(run.loss, series, run.series.get(LR))
    finite = np.isfinite(series.values)
    positive = finite & (series.values > 0)
    diverged_at = _diverged_at(run, found)
    exploding, between = _explosions(series, found)
    aftermath = (between | _aftermath(run, found, diverged_at)) & positive & ~exploding
    rest = np.flatnonzero(positive & ~exploding & ~aftermath)
    lr = run.series.get(LR)
    lr_there = align.lr_at(series.steps[rest], lr.steps, lr.values) if lr is not None else np.zeros(len(rest))
    start = warmup(np.log(series.values[rest]), lr_there)
    healthy = rest[start.rows :]
    norms = series.values[healthy]
    ceiling, visible = _ceiling(run, norms)
    gaps = np.diff(series.steps)
    return Evidence(
        run=run,
        steps=series.steps[healthy],
        norms=norms,
        exploding_steps=series.steps[exploding],
        exploding=series.values[exploding],
        excluded=Excluded(
            nonfinite=int((~finite).sum()),
            zero=int((finite & ~positive).sum()),
            exploding=int(exploding.sum()),
            aftermath=int(aftermath.sum()),
            warmup=start.rows,
        ),
        start=start,
        diverged_at=diverged_at,
        ceiling=ceiling,
        visible=visible,
        spacing=float(np.median(gaps)) if run.steps_known and len(gaps) else 1.0,
        rising_lr=_rising(lr_there),
    )


def _explosions(series: Series, found: Detection) -> tuple[Mask, Mask]:
    """Exploding norms, and the others that lie between or behind them within an explosion.

    What lies above the alarm bound explodes here even where it comes so often that `detect` takes it for the way of
    the data: a safety net is there for it all the same.
    """
    none = np.full(len(series), np.nan)
    with np.errstate(invalid="ignore"):
        exploding = np.isfinite(series.values) & (series.values >= (none if found.norm is None else found.norm.bound))
        within = np.zeros(len(series), np.bool_)
        for e in found.explosions:
            part = slice(e.first, e.last + 1)
            within[part] = True
            exploding[part] |= np.isfinite(series.values[part]) & (series.values[part] >= RATIO * e.level)
            exploding[e.peak] = True
    return exploding, within & ~exploding


def _diverged_at(run: Run, found: Detection) -> int | None:
    """The step at which the run left for good: of the explosion that led to it, where one did."""
    loss, norm = run.loss, run.grad_norm
    if not found.diverged or loss is None or norm is None:
        return None
    steps = [
        int(loss.steps[s.first] if s.led_by is None else min(loss.steps[s.first], norm.steps[found.explosions[s.led_by].first]))
        for s in found.spikes
        if s.fatal
    ]
    if not np.isfinite(loss.values[-1]):
        finite = np.flatnonzero(np.isfinite(loss.values))
        steps.append(int(loss.steps[finite[-1] + 1 if len(finite) else 0]))
    return min(steps, default=None)


def _aftermath(run: Run, found: Detection, diverged_at: int | None) -> Mask:
    """Norms logged while the loss was off its course, and all after it left for good.

    A spike that ended on a new level has its rise left out: the level is how the run lives on.
    """
    norm, loss = run.series["grad_norm"], run.loss
    if loss is None:
        return np.zeros(len(norm), np.bool_)
    first = loss.steps[[s.first for s in found.spikes]]
    last = loss.steps[[s.peak if s.recovered is False else s.last for s in found.spikes]]
    a, b = np.searchsorted(norm.steps, first), np.searchsorted(norm.steps, last, "right") - 1
    some = a <= b
    out = ~outside(len(norm), a[some], b[some])
    if diverged_at is not None:
        out |= norm.steps >= diverged_at
    return np.asarray(out)


def _ceiling(run: Run, norms: Values) -> tuple[float | None, float]:
    if run.norm_stage is not NormStage.POST_CLIP or not len(norms):
        return None, 1.0
    top = float(norms.max())
    bound = run.max_norm
    ceiling = bound if bound is not None and np.isfinite(bound) and bound >= top * (1 - AT_BOUND) else top
    return ceiling, float(np.mean(norms < ceiling * (1 - AT_BOUND)))


def _rising(lr: Values) -> bool:
    """Whether the learning rate rises to the very end, and did not do so from the first row on by restarts or steps."""
    return len(lr) > 1 and bool(lr[0] < lr[-1] and (np.diff(lr) >= 0).all() and lr[-1] > lr[len(lr) // 2])
