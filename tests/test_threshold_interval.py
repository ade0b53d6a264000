"""The interval covers what it says it covers, and the bootstrap is the one it says it is."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from gradclip_cli.threshold import suggest_threshold
from gradclip_cli.threshold.interval import SEED, _resampled, _t, block_length, interval
from tests.conftest import make_run
from tests.threshold_cases import ar1

SIGMA = 0.4


@pytest.mark.parametrize(("n", "phi"), [(1000, 0.8), (500, 0.5), (2000, 0.9)], ids=str)
def test_it_covers_the_true_percentile_in_at_least_90_percent_of_runs(n: int, phi: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fewer resamples: quicker, and no better.
    monkeypatch.setattr("gradclip_cli.threshold.interval.RESAMPLES", 200)
    true = math.exp(SIGMA * NormalDist().inv_cdf(0.99))
    covered, widths = 0, []
    num = 50
    for seed in range(num):
        s = suggest_threshold(make_run(grad_norm=np.exp(ar1(n, phi, SIGMA, seed))))
        assert s.low is not None and s.high is not None
        covered += s.low <= true <= s.high
        widths.append(s.high / s.low)
    assert covered >= 0.9 * num
    assert np.median(widths) < 2, "an interval that says nothing covers everything"


def test_more_norms_make_it_narrower() -> None:
    widths = []
    for n in (200, 2000, 20000):
        low, high, _ = interval(np.exp(ar1(n, 0.5, SIGMA, 3)), 99)
        widths.append(math.log(high / low))
    assert widths[0] > 2 * widths[1] > 4 * widths[2]


def test_it_is_the_same_each_time() -> None:
    x = np.exp(ar1(300, 0.5, SIGMA, 3))
    assert interval(x, 99) == interval(x, 99)


@pytest.mark.parametrize(("percentile", "length"), [(99, 7), (50, 1), (10, 20), (95, 60)], ids=str)
def test_resamples_are_those_of_whole_blocks(percentile: float, length: int) -> None:
    x = ar1(300, 0.7, 1, 5)
    got = _resampled(x, percentile, length)
    generator = np.random.default_rng(SEED)
    num = round(300 / length)
    for value in got[:200]:
        starts = generator.integers(0, 300 - length + 1, num)
        rows = (starts[:, None] + np.arange(length)).ravel()
        assert value == pytest.approx(np.percentile(x[rows], percentile), abs=1e-12)


def test_the_block_grows_with_the_dependence() -> None:
    lengths = [np.median([block_length(ar1(2000, phi, 1, seed)) for seed in range(10)]) for phi in (0, 0.5, 0.8, 0.95)]
    assert lengths[0] <= 3
    assert lengths == sorted(lengths)
    # The rule for an AR(1) process known exactly: (n x 2 g^2 / (4/3 x s^2)) ^ (1/3), g = 2 phi / (1 - phi)^2 ..., in units of the variance.
    phi = 0.8
    g, size = 2 * phi / (1 - phi) ** 2, (1 + phi) / (1 - phi)
    exact = (2000 * 2 * g**2 / (4 / 3 * size**2)) ** (1 / 3)
    assert 0.6 * exact < lengths[2] < 1.6 * exact


def test_student_t() -> None:
    # Tables: t(0.975) for 5, 10, 30 degrees of freedom.
    for freedom, quantile in ((5, 2.571), (10, 2.228), (30, 2.042), (1e9, 1.960)):
        assert _t(freedom) == pytest.approx(quantile, rel=2e-3)
