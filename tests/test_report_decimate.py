import numpy as np
import pytest

from gradclip_cli.report.decimate import keep, line, since


def brute_force(x: np.ndarray, values: np.ndarray, num_bins: int) -> set[int]:
    """First, last, smallest and largest of every bin, by the definition."""
    edges = np.linspace(x[0], x[-1], num_bins + 1)
    kept = set()
    for i in range(num_bins):
        inside = np.flatnonzero((x >= edges[i]) & ((x < edges[i + 1]) | (i == num_bins - 1)))
        if len(inside):
            kept |= {inside[0], inside[-1], inside[values[inside].argmin()], inside[values[inside].argmax()]}
    return {int(i) for i in kept}


@pytest.mark.parametrize("gaps", ["regular", "irregular"])
def test_keeps_first_last_smallest_and_largest_of_every_bin(gaps: str) -> None:
    rng = np.random.default_rng(0)
    x = np.arange(3000.0) if gaps == "regular" else np.cumsum(rng.pareto(0.7, 3000))
    values = rng.standard_normal(3000)
    assert set(keep(x, values, 50).tolist()) == brute_force(x, values, 50)


def test_no_extreme_of_a_million_is_lost() -> None:
    values = np.random.default_rng(1).standard_normal(1_000_000)
    values[[123_456, 777_777]] = (50.0, -50.0)
    kept = keep(np.arange(1e6), values, 1000)
    assert {123_456, 777_777} <= set(kept.tolist())
    assert len(kept) <= 4000
    assert (np.diff(kept) > 0).all()


def test_a_stretch_logged_rarely_keeps_its_points_beside_a_dense_one() -> None:
    x = np.concatenate([np.arange(10_000.0), 10_000 + 1000 * np.arange(10.0)])
    kept = keep(x, np.sin(x), 100)
    assert {10_001, 10_002, 10_005, 10_009} <= set(kept.tolist())


def test_few_points_are_all_kept_and_what_is_not_finite_is_not() -> None:
    values = np.array([1.0, np.nan, np.inf, 2.0, -np.inf])
    assert keep(np.arange(5.0), values, 10).tolist() == [0, 3]
    assert keep(np.arange(0.0), np.empty(0), 10).tolist() == []
    assert keep(np.arange(2.0), np.full(2, np.nan), 10).tolist() == []


def test_a_gap_is_drawn_where_it_is_wide_enough_to_see() -> None:
    values = np.array([1.0, 2.0, np.nan, 4.0, 5.0])
    x, y = line(np.arange(5.0), values, 100)
    np.testing.assert_array_equal(x, [0, 1, np.nan, 3, 4])
    np.testing.assert_array_equal(y, [1, 2, np.nan, 4, 5])
    # Every second value nan, far below a pixel apart: the line stays a line.
    dense = np.where(np.arange(10_000) % 2, np.nan, 1.0)
    assert np.isfinite(line(np.arange(10_000.0), dense, 100)[1]).all()


def test_neighbouring_steps_that_float64_cannot_tell_apart() -> None:
    steps = 9 * 10**18 + np.arange(3)
    assert since(steps, int(steps[0])).tolist() == [0, 1, 2]
    ends = np.array([-(2**63), 2**63 - 1])
    assert since(ends, int(ends[0])).tolist() == [0, 2.0**64]
