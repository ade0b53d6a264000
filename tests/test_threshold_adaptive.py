"""AutoClip and ZClip as published, and what a nan does to them here."""

from __future__ import annotations

import numpy as np
import pytest

from gradclip_cli.threshold.adaptive import autoclip, running_percentile, zclip
from tests.threshold_cases import norms


def spiky(n: int = 400, seed: int = 0) -> np.ndarray:
    values = norms(n, seed=seed)
    values[[3, 60, 61, 200, 350]] *= [5, 20, 8, 100, 3]
    return values


def published_autoclip(history: list[float], percentile: float) -> list[float]:
    seen: list[float] = []
    out = []
    for norm in history:
        seen.append(norm)
        out.append(float(np.percentile(seen, percentile)))
    return out


def published_zclip(history: list[float], alpha: float = 0.97, z_thresh: float = 2.5, warmup: int = 25) -> list[tuple[float, float]]:
    """(norm after clipping, mean after the step) with clip_option adaptive_scaling, max_grad_norm None."""
    buffer: list[float] = []
    mean = var = None
    out = []
    for norm in history:
        if mean is None:
            buffer.append(norm)
            if len(buffer) >= warmup:
                mean = sum(buffer) / len(buffer)
                var = sum((v - mean) ** 2 for v in buffer) / len(buffer)
            out.append((norm, float("nan") if mean is None else mean))
            continue
        std = var**0.5
        z = (norm - mean) / (std + 1e-6)
        clipped = norm
        if z > z_thresh:
            clipped = mean + (z_thresh * std) / (z / z_thresh)
        mean = alpha * mean + (1 - alpha) * clipped
        var = alpha * var + (1 - alpha) * (clipped - mean) ** 2
        out.append((min(norm, clipped), mean))
    return out


@pytest.mark.parametrize("percentile", [1, 10, 50, 90, 99, 99.9])
@pytest.mark.parametrize("seed", range(3))
def test_autoclip_is_the_published_rule(percentile: float, seed: int) -> None:
    values = spiky(seed=seed)
    series = autoclip(np.arange(400), values, percentile)
    expected = np.array(published_autoclip(values.tolist(), percentile))
    np.testing.assert_allclose(series.bound, expected, rtol=1e-12)
    np.testing.assert_allclose(series.clipped, np.minimum(values, expected), rtol=1e-12)
    assert series.clipped_fraction == np.mean(values > series.bound)


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 50, [5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0]], ids=len)
def test_a_running_percentile_of_ties_and_orders(values: list[float]) -> None:
    np.testing.assert_allclose(running_percentile(np.array(values), 75), published_autoclip(values, 75), rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_zclip_is_the_published_rule(seed: int) -> None:
    values = spiky(seed=seed)
    series = zclip(np.arange(400), values)
    expected = published_zclip(values.tolist())
    np.testing.assert_allclose(series.clipped, [clipped for clipped, _ in expected], rtol=1e-12)
    is_clipped = series.clipped < values
    assert is_clipped.sum() >= 3
    # It clips exactly what lies above the bound.
    np.testing.assert_array_equal(is_clipped, values > series.bound)
    assert np.isnan(series.bound[:25]).all() and np.isfinite(series.bound[25:]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_they_survive_what_is_not_finite(bad: float) -> None:
    values = spiky()
    places = [0, 10, 30, 100, 100, 400]
    broken = np.insert(values, places, bad)
    steps = np.arange(len(broken))
    for whole, part in (
        (autoclip(np.arange(400), values, 90), autoclip(steps, broken, 90)),
        (zclip(np.arange(400), values), zclip(steps, broken)),
    ):
        np.testing.assert_array_equal(part.bound, whole.bound)
        np.testing.assert_array_equal(part.clipped, whole.clipped)
        np.testing.assert_array_equal(part.steps, np.flatnonzero(np.isfinite(broken)))


def test_norms_beyond_all_measure_do_not_break_them() -> None:
    values = spiky()
    values[100] = 1e300
    assert np.isfinite(zclip(np.arange(400), values).clipped).all()
    assert np.isfinite(autoclip(np.arange(400), values, 99).bound).all()
