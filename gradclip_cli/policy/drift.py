"""Drift from a baseline run: the loss at equal steps, and the percentiles of the gradient norm over the steps both have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gradclip_cli.model.check import Check, Status
from gradclip_cli.model.finding import Analysis, Verdict
from gradclip_cli.model.run import GRAD_NORM, LOSS, NormStage, Series, Values
from gradclip_cli.policy.policy import Policy
from gradclip_cli.wording import span

_PERCENTILES = (50, 90, 99)
# Stretches of the common steps whose losses are compared; each must hold so many points of both.
_STRETCHES = 10
_MIN_POINTS = 12
# An interval of so many standard errors of the rank: 95 %.
_Z = 1.96


def drift(analysis: Analysis, baseline: Analysis | str, policy: Policy) -> Iterator[Check]:
    """How far a run is from its baseline, for loss and norm.

    What is compared are quantiles, each with the 95 % interval that the order of its own points
    gives (ranks n q +- 1.96 sqrt(n q (1 - q)); Conover, Practical Nonparametric Statistics). Drift is the
    gap between the two intervals relative to the baseline's quantile, so that noise alone is none.
    """
    for name in (LOSS, GRAD_NORM):
        check = Check("baseline", f"{name.replace('_', '-')}-drift", Status.PASS, "", required=name in policy.require)
        if isinstance(baseline, str):
            yield replace(check, status=Status.SKIP, detail=baseline)
            continue
        mine, theirs = _finite(analysis, name), _finite(baseline, name)
        reason = _reason(analysis, baseline, name, mine, theirs)
        if reason is not None or mine is None or theirs is None:
            yield replace(check, status=Status.SKIP, detail=reason or "")
        else:
            yield _compared(check, mine, theirs, policy)


def _finite(analysis: Analysis, name: str) -> Series | None:
    series = analysis.run.series.get(name)
    if series is None:
        return None
    keep = np.isfinite(series.values)
    return series if keep.all() else replace(series, steps=series.steps[keep], values=series.values[keep])


def _reason(analysis: Analysis, baseline: Analysis, name: str, mine: Series | None, theirs: Series | None) -> str | None:
    """Why two runs cannot be compared, None where they can."""
    noun = "training loss" if name == LOSS else "gradient norm"
    if mine is None or not len(mine):
        return f"no {noun} in this log"
    if theirs is None or not len(theirs):
        return f"no {noun} in the baseline"
    if baseline.verdict in (Verdict.DIVERGED, Verdict.CANNOT_JUDGE):
        return f"the baseline is {baseline.verdict.value} itself"
    if analysis.run.steps_known != baseline.run.steps_known:
        return "only one of the two logs has step numbers"
    stages = {analysis.run.norm_stage, baseline.run.norm_stage}
    if name == GRAD_NORM and NormStage.POST_CLIP in stages and len(stages) > 1:
        return "one of the two logs holds norms from after clipping, the other does not"
    return None


def _compared(check: Check, mine: Series, theirs: Series, policy: Policy) -> Check:
    low, high = max(mine.steps[0], theirs.steps[0]), min(mine.steps[-1], theirs.steps[-1])
    a, b = _between(mine, low, high), _between(theirs, low, high)
    fewest = min(len(a), len(b))
    if fewest < 2 * _MIN_POINTS:
        return replace(check, status=Status.SKIP, detail=f"only {fewest} points of both runs at equal steps; it takes {2 * _MIN_POINTS}")
    found = _percentiles(a, b) if mine.name == GRAD_NORM else _stretches(mine, theirs, int(low), int(high), fewest)
    where, gap, value, expected = max(found, key=lambda f: f[1])
    apart = f"{gap:.1%} apart beyond the noise, {policy.tolerance:.0%} is allowed"
    if gap > policy.tolerance:
        detail = f"{where} {value:.4g}, baseline {expected:.4g}: {apart}"
    else:
        detail = f"steps {span(int(low), int(high))}: at most {apart}"
    evidence = {"drift_fraction": gap, "tolerance_fraction": policy.tolerance, "value": value, "baseline_value": expected}
    return replace(check, status=Status.FAIL if gap > policy.tolerance else Status.PASS, detail=detail, evidence=evidence)


def _percentiles(a: Values, b: Values) -> list[tuple[str, float, float, float]]:
    return [(f"p{q} of the gradient norm", *_gap(a, b, q / 100)) for q in _PERCENTILES]


def _stretches(mine: Series, theirs: Series, low: int, high: int, fewest: int) -> list[tuple[str, float, float, float]]:
    edges = np.linspace(low, high + 1, min(_STRETCHES, fewest // _MIN_POINTS) + 1)
    found = []
    for first, end in zip(edges[:-1], edges[1:], strict=True):
        last = int(np.ceil(end)) - 1
        a, b = _between(mine, first, last), _between(theirs, first, last)
        # Series logged at uneven steps may have few points in one of them.
        if min(len(a), len(b)) >= _MIN_POINTS // 2:
            found.append((f"median loss of steps {span(int(np.ceil(first)), last)}", *_gap(a, b, 0.5)))
    return found or [(f"median loss of steps {span(low, high)}", *_gap(_between(mine, low, high), _between(theirs, low, high), 0.5))]


def _between(series: Series, first: float, last: float) -> Values:
    return series.values[np.searchsorted(series.steps, first) : np.searchsorted(series.steps, last, side="right")]


def _gap(a: Values, b: Values, q: float) -> tuple[float, float, float]:
    """The gap between the intervals of a quantile as a fraction of b's, and the two quantiles."""
    low_a, value, high_a = _interval(a, q)
    low_b, expected, high_b = _interval(b, q)
    gap = max(low_a - high_b, low_b - high_a, 0.0)
    return (gap / abs(expected) if expected else float(np.inf) if gap else 0.0), value, expected


def _interval(values: Values, q: float) -> tuple[float, float, float]:
    ordered, n = np.sort(values), len(values)
    half = _Z * np.sqrt(n * q * (1 - q))
    low, high = int(np.floor(n * q - half)), int(np.ceil(n * q + half))
    return float(ordered[max(low - 1, 0)]), float(np.quantile(ordered, q)), float(ordered[min(high, n - 1)])
