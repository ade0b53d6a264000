"""What a policy asks beside the rules: series that must be there, enough steps, and limits on clipping and explosions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gradclip_cli.model.check import Check, Status
from gradclip_cli.model.finding import Analysis, Verdict
from gradclip_cli.model.run import CLIP_COEF, GRAD_NORM, LOSS, NormStage, Run, Series
from gradclip_cli.policy.policy import Known, Policy
from gradclip_cli.wording import count

# Fewer judged points than this, and nothing can be said of a series.
_MIN_JUDGED = 8
_NAMES = {
    LOSS: "training loss",
    GRAD_NORM: "gradient norm",
    "lr": "learning rate",
    "loss_scale": "loss scale",
    CLIP_COEF: "clip coefficient",
}
_AFTER_CLIPPING = "the gradient norm was logged after clipping, where exploding steps cannot be seen"
# A clipped norm is max_norm x G / (G + 1e-6), printed in a few digits; a coefficient of 1 may be off by as much.
_ON_BOUND = 1e-3
_UNCLIPPED_COEF = 1 - 1e-5


def limits(analysis: Analysis, policy: Policy, rules: Sequence[Known]) -> Iterator[Check]:
    """The checks of one run that no rule makes, in the order of the settings."""
    yield _verdict(analysis, spikes_matter=any(r.id == "GC103" and policy.bar(r) is not None for r in rules))
    for name in policy.require:
        yield _required(analysis, name)
    yield _min_steps(analysis.run, policy)
    if policy.max_clipped_fraction is not None:
        yield _clipped(analysis.run, policy.max_clipped_fraction)
    if policy.max_exploding_per_1000 is not None:
        yield _exploding(analysis, policy.max_exploding_per_1000)


def _verdict(analysis: Analysis, *, spikes_matter: bool) -> Check:
    check = Check("verdict", "verdict", Status.PASS, f"could be judged: {analysis.verdict}", required=True)
    if analysis.verdict is Verdict.CANNOT_JUDGE:
        reason = next((f.message for f in analysis.findings if f.rule == "GC306"), "too few points of the loss and of the gradient norm")
        return replace(check, status=Status.SKIP, detail=f"no verdict on this run: {reason}")
    if spikes_matter and any(s.recovered is None for s in analysis.detection.spikes):
        return replace(check, status=Status.SKIP, detail="the loss is up when the log ends: too soon to tell whether it diverged (GC103)")
    return check


def _required(analysis: Analysis, name: str) -> Check:
    check = Check("require", name.replace("_", "-"), Status.PASS, "", required=True)
    reason = _unjudged(analysis, name)
    if reason is not None:
        others = ",".join(n for n in (LOSS, GRAD_NORM) if n != name and n in analysis.run.series)
        if name in (LOSS, GRAD_NORM) and others and _unjudged(analysis, others) is None:
            reason += f" (--require {others} judges without it)"
        return replace(check, status=Status.SKIP, detail=reason)
    return replace(check, detail=f"{count(len(analysis.run.series[name]), 'point')} of the {_NAMES[name]}")


def _unjudged(analysis: Analysis, name: str) -> str | None:
    """Why a series is no evidence, None where it is."""
    run = analysis.run
    series = run.series.get(name)
    if series is None or not len(series):
        return f"no {_NAMES[name]} in this log"
    if name == GRAD_NORM and run.norm_stage is NormStage.POST_CLIP:
        return _AFTER_CLIPPING
    judged = {LOSS: analysis.detection.judged_loss, GRAD_NORM: analysis.detection.judged_norm}.get(name)
    if judged is not None and judged < _MIN_JUDGED:
        return f"only {count(judged, 'point')} of the {_NAMES[name]} had enough history to be judged; it takes {_MIN_JUDGED}"
    return None


def _min_steps(run: Run, policy: Policy) -> Check:
    check = Check("min-steps", "min-steps", Status.PASS, "", required=True)
    asked = [s for name in policy.require if (s := run.series.get(name)) is not None]
    unit = "logged step" if run.steps_known else "logged row"
    if asked:
        fewest = min(asked, key=len)
        steps, what = len(fewest), f"{count(len(fewest), unit)} of the {_NAMES[fewest.name]}"
    else:
        steps = max((len(s) for s in run.series.values()), default=0)
        what = count(steps, unit)
    check = replace(check, evidence={"num_steps": steps, "min_steps": policy.min_steps})
    if steps < policy.min_steps:
        return replace(check, status=Status.SKIP, detail=f"only {what}; min-steps asks for {policy.min_steps:,}")
    return replace(check, detail=f"{what}, at least {policy.min_steps:,} asked for")


def _clipped(run: Run, limit: float) -> Check:
    check = Check("max-clipped-fraction", "max-clipped-fraction", Status.PASS, "", required=True)
    share = _clipped_share(run)
    if isinstance(share, str):
        return replace(check, status=Status.SKIP, detail=share)
    fraction, points, how = share
    detail = f"{fraction:.1%} of {count(points, 'step')} clipped ({how}), at most {limit:.1%} are allowed"
    evidence = {"clipped_fraction": fraction, "max_clipped_fraction": limit, "num_points": points}
    return replace(check, status=Status.FAIL if fraction > limit else Status.PASS, detail=detail, evidence=evidence)


def _clipped_share(run: Run) -> tuple[float, int, str] | str:
    """Share of clipped steps, of how many, and how it was told; or why it cannot be."""
    coef = _finite(run.series.get(CLIP_COEF))
    if len(coef):
        return float(np.mean(coef < _UNCLIPPED_COEF)), len(coef), "by the logged coefficient"
    norms = _finite(run.grad_norm)
    if not len(norms):
        return "no finite gradient norm and no clip coefficient in this log"
    bound = run.max_norm
    if bound is None:
        return "no max_norm is known (--max-norm gives it)"
    if not (math.isfinite(bound) and bound > 0):
        return f"max_norm is {bound:g}: clipping is off"
    if run.norm_stage is NormStage.POST_CLIP:
        return float(np.mean(norms > bound * (1 - _ON_BOUND))), len(norms), f"norms after clipping that sit at max_norm {bound:g}"
    return float(np.mean(norms > bound)), len(norms), f"norm above max_norm {bound:g}"


def _exploding(analysis: Analysis, limit: float) -> Check:
    check = Check("max-exploding-per-1000", "max-exploding-per-1000", Status.PASS, "", required=True)
    reason = _unjudged(analysis, GRAD_NORM)
    if reason is not None:
        return replace(check, status=Status.SKIP, detail=reason)
    judged, num = analysis.detection.judged_norm, len(analysis.detection.explosions)
    rate = 1000 * num / judged
    detail = f"{count(num, 'explosion')} in {judged:,} judged steps is {rate:.3g} per 1000, at most {limit:g} are allowed"
    evidence = {"exploding_per_1000": rate, "max_exploding_per_1000": limit, "num_explosions": num, "num_judged": judged}
    return replace(check, status=Status.FAIL if rate > limit else Status.PASS, detail=detail, evidence=evidence)


def _finite(series: Series | None) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    values = np.empty(0) if series is None else series.values
    return values[np.isfinite(values)]
