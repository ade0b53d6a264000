"""Small series with known events, for the tests of `detect`."""

from __future__ import annotations

import numpy as np

from gradclip_cli.detect import detect
from gradclip_cli.model.detection import Detection
from gradclip_cli.model.run import Series, Values


def series(name: str, values: Values, every: int = 1) -> Series:
    return Series(name, name, np.arange(len(values), dtype=np.int64) * every, np.asarray(values, np.float64))


def judge(loss: Values | None = None, norm: Values | None = None, lr: Values | None = None, every: int = 1) -> Detection:
    def given(name: str, values: Values | None) -> Series | None:
        return None if values is None else series(name, values, every)

    return detect(given("loss", loss), given("grad_norm", norm), given("lr", lr))


def falling_loss(rows: int = 600, noise: float = 0.02, seed: int = 0) -> Values:
    """From 4 towards 2, with normal noise."""
    return 2 + 2 * np.exp(-np.arange(rows) / 120) + noise * np.random.default_rng(seed).normal(size=rows)


def usual_norm(rows: int = 600, sigma: float = 0.2, seed: int = 1) -> Values:
    """Log-normal around 1."""
    return np.exp(sigma * np.random.default_rng(seed).normal(size=rows))


def with_bump(loss: Values, at: int, bump: Values) -> Values:
    """The loss with a bump added from row `at` on."""
    out = loss.copy()
    stop = min(at + len(bump), len(out))
    out[at:stop] += bump[: stop - at]
    return out


def raised(values: Values, rows: dict[int, float]) -> Values:
    """The values with some rows multiplied."""
    out = values.copy()
    for row, factor in rows.items():
        out[row] *= factor
    return out


def decay(height: float, tau: float, rows: int = 400) -> Values:
    return height * np.exp(-np.arange(rows) / tau)
