"""The thresholds that adaptive rules would have taken on the same norms, by their published code."""

from __future__ import annotations

import heapq
import math

import numpy as np

from gradclip_cli.model.run import Steps, Values
from gradclip_cli.model.threshold import AdaptiveSeries

ALPHA, Z_THRESH, WARMUP_STEPS, EPS = 0.97, 2.5, 25, 1e-6
"""Defaults of ZClip."""
LARGEST = 1e150
"""Norms beyond this are taken as this, so that their squares stay finite."""


def autoclip(steps: Steps, norms: Values, percentile: float) -> AdaptiveSeries:
    """AutoClip (github.com/pseeth/autoclip): the percentile of all norms seen so far, the present one included.

    A nan or inf never enters the history, where it would turn every later threshold into nan.

    Args:
        norms: As logged, shape (n,).
        percentile: The rule has no default.
    """
    steps, norms = _finite(steps, norms)
    bound = running_percentile(norms, percentile)
    return _series("autoclip", f"clip_percentile {percentile:g}", steps, norms, bound, np.minimum(norms, bound))


def running_percentile(values: Values, percentile: float) -> Values:
    """`np.percentile(values[: i + 1], percentile)` for every i, in O(n log n)."""
    out = np.empty(len(values))
    lower: list[float] = []  # negated: the largest of the lower part on top
    upper: list[float] = []
    for i, value in enumerate(values.tolist()):
        if lower and value < -lower[0]:
            heapq.heappush(lower, -value)
        else:
            heapq.heappush(upper, value)
        place = i * percentile / 100
        whole = min(int(place), i)
        while len(lower) < whole + 1:
            heapq.heappush(lower, -heapq.heappop(upper))
        while len(lower) > whole + 1:
            heapq.heappush(upper, -heapq.heappop(lower))
        low = -lower[0]
        out[i] = low + (place - whole) * (upper[0] - low) if upper else low
    return out


def zclip(steps: Steps, norms: Values) -> AdaptiveSeries:
    """ZClip (github.com/bluorion-com/ZClip), mode "zscore", "adaptive_scaling", without its fixed `max_grad_norm`.

    After 25 norms their mean and variance start exponential averages (alpha 0.97). A norm with z = (norm - mean) /
    (std + 1e-6) above 2.5 is clipped to mean + 2.5 std / (z / 2.5), and the clipped norm enters the averages. A nan or
    inf enters nothing.

    Args:
        norms: As logged, shape (n,).
    """
    steps, logged = _finite(steps, norms)
    bound, clipped = np.full(len(logged), np.nan), logged.copy()
    collected: list[float] = []
    mean = variance = 0.0
    for i, norm in enumerate(logged.tolist()):
        if i < WARMUP_STEPS:
            collected.append(norm)
            if len(collected) == WARMUP_STEPS:
                mean = sum(collected) / WARMUP_STEPS
                variance = sum((v - mean) * (v - mean) for v in collected) / WARMUP_STEPS
            continue
        std = math.sqrt(variance)
        bound[i] = mean + Z_THRESH * (std + EPS)
        z = (norm - mean) / (std + EPS)
        if z > Z_THRESH:
            clipped[i] = norm = mean + Z_THRESH * std / (z / Z_THRESH)
        mean = ALPHA * mean + (1 - ALPHA) * norm
        variance = ALPHA * variance + (1 - ALPHA) * (norm - mean) * (norm - mean)
    parameters = f"z_thresh {Z_THRESH:g}, alpha {ALPHA:g}, {WARMUP_STEPS} warm-up steps"
    return _series("zclip", parameters, steps, logged, bound, clipped)


def _series(rule: str, parameters: str, steps: Steps, norms: Values, bound: Values, clipped: Values) -> AdaptiveSeries:
    fraction = float(np.mean(norms > bound)) if len(norms) else 0.0
    return AdaptiveSeries(rule, parameters, steps, bound, clipped, fraction)


def _finite(steps: Steps, norms: Values) -> tuple[Steps, Values]:
    rows = np.isfinite(norms)
    return steps[rows], np.minimum(norms[rows], LARGEST)
