"""The float64 reference against exact arithmetic: fractions for whole p, math.fsum otherwise."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from gradclip_cli.clipping import reference
from gradclip_cli.clipping.reference import clipped, coefficient, total_norm


def exact_error(norm: float, values: list[float], p: int) -> float:
    """How far norm**p is from the exact sum, as a relative error of the norm."""
    total = sum((abs(Fraction(v)) ** p for v in values), Fraction(0))
    return abs(float(Fraction(norm) ** p / total - 1)) / p


@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("scale", [1.0, 1e-310, 1e-200, 1e150, 1e305])
def test_it_is_exact_at_every_scale(p: int, scale: float) -> None:
    values = [v * scale for v in np.random.default_rng(1).standard_normal(300).tolist()]
    assert exact_error(total_norm([np.array(values)], p), values, p) < (1e-13 if scale > 1e-300 else 1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_every_storage_dtype_is_widened_first(dtype: type, p: int) -> None:
    stored = [np.full(4000, 30, dtype), np.full((7, 9), 1e-4, dtype), np.array(2.5, dtype)]
    values = [float(v) for a in stored for v in a.reshape(-1)]
    assert exact_error(total_norm(stored, p), values, p) < 1e-13


def test_other_norm_types() -> None:
    values = np.random.default_rng(2).standard_normal(1000)
    for p in (0.5, 1.7, 2.5, 40.0):
        assert total_norm([values], p) == pytest.approx(math.fsum(abs(v) ** p for v in values) ** (1 / p), rel=1e-13)
    assert total_norm([values], math.inf) == np.abs(values).max()


def test_parts_and_order_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).standard_normal((50, 40)) * np.logspace(-8, 8, 40)
    whole = total_norm([values])
    assert total_norm([values.T]) == pytest.approx(whole, rel=1e-14)
    assert total_norm([values[::2], values[1::2]]) == pytest.approx(whole, rel=1e-14)
    monkeypatch.setattr(reference, "_BLOCK", 7)
    assert total_norm([values]) == pytest.approx(whole, rel=1e-14)
    assert exact_error(whole, values.reshape(-1).tolist(), 2) < 1e-14


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_nothing_zero_and_nonfinite(p: float) -> None:
    assert total_norm([], p) == 0
    assert total_norm([np.empty(0)], p) == 0
    assert total_norm([np.zeros(5)], p) == 0
    assert total_norm([np.array([1.0, -math.inf])], p) == math.inf
    assert math.isnan(total_norm([np.array([math.inf]), np.array([math.nan]), np.array([math.inf])], p))


def test_an_impossible_norm_type_is_refused() -> None:
    for p in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="must be above 0"):
            total_norm([np.ones(3)], p)


def test_a_norm_beyond_float64_is_inf() -> None:
    assert total_norm([np.full(4, 1.5e308)]) == math.inf


def test_coefficient() -> None:
    assert coefficient(4.0, 1.0, 0.0) == 0.25
    assert coefficient(4.0, 1.0) == 1 / (4 + 1e-6)
    assert coefficient(0.5, 1.0) == 1
    assert coefficient(1.0, 1.0, 0.0) == 1
    assert coefficient(1.0, 1.0) == 1 / (1 + 1e-6)
    assert coefficient(0.0, 1.0, 0.0) == 1
    assert coefficient(math.inf, 1.0) == 0
    assert math.isnan(coefficient(math.nan, 1.0))


def test_clipped_keeps_shapes_and_input() -> None:
    given = [np.array([[3.0, 0.0]], np.float32), np.array(4.0, np.float32)]
    after = clipped(given, 1.0, eps=0.0)
    assert [a.shape for a in after] == [(1, 2), ()]
    np.testing.assert_allclose(after[0], [[0.6, 0.0]], rtol=1e-15)
    assert after[1] == 0.8
    assert given[1] == 4
    assert clipped(given, 10.0)[1] == 4
