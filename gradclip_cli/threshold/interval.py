"""How well a percentile of dependent values is known: a moving-block bootstrap."""

from __future__ import annotations

import math

import numpy as np

from gradclip_cli.model.run import Values

Z = 1.959964
"""Standard normal quantile of a two-sided 95 % interval."""
RESAMPLES, RESAMPLES_LEAST = 1000, 200
WORK = 20_000_000
"""Rows times resamples: beyond it fewer resamples are made, so that the time stays linear in the rows."""
SEED = 20240229
STRETCH = 2
"""The rule for the block length aims at the variance of a mean; the tails need longer blocks (measured: README, "The interval")."""
FEWEST_BLOCKS, MOST_BLOCKS = 5, 20_000
TAIL, TAIL_LEAST = 5.0, 60
"""The tail: five times as many norms as lie above the percentile, and 60 at least."""
TAIL_MOST = 0.25
"""More of the norms are no tail."""
TAIL_CLUSTERS = 0.1
"""How they cluster is seen from a tenth of all norms at least."""


def interval(norms: Values, percentile: float) -> tuple[float, float, int]:
    """About 95 % limits for a percentile of the process that made the norms, and the block length in rows.

    All in the logarithm, so that scaling the norms scales the limits. The standard error is that of the percentile over
    resamples of whole blocks (H. R. Kuensch, Annals of Statistics 17, 1989, 1217-1241); Student's t for the number of
    blocks. Resampling never goes beyond the largest norm seen, so the upper limit is at least the one an
    exponential tail with the observed clustering gives. Deterministic.

    Args:
        norms: Positive and finite, in the order of the log, shape (n,), n >= 2.
        percentile: 0 to 100, exclusive.
    """
    x = np.log(norms)
    n = len(x)
    length = min(max(STRETCH * block_length(_flat(x)), n // MOST_BLOCKS), max(n // FEWEST_BLOCKS, 1))
    spread = float(np.std(_resampled(x, percentile, length), ddof=1)) * math.sqrt(n / (n - length))
    below = _t(n / length - 1) * spread
    above = max(below, Z * _tail_error(x, percentile, length))
    value = float(np.percentile(norms, percentile))
    with np.errstate(over="ignore"):
        return value * math.exp(-below), float(value * np.exp(above)), length


def block_length(x: Values) -> int:
    """The block length, in rows, that suits the autocorrelation of a series.

    D. N. Politis and H. White, Econometric Reviews 23, 2004, 53-70, with the correction of A. Patton, D. N. Politis and
    H. White, ibid. 28, 2009, 372-375, for blocks that do not wrap around.
    """
    n = len(x)
    deviation = x - x.mean()
    quiet = max(5, math.ceil(math.sqrt(math.log10(n))))
    most = min(math.ceil(math.sqrt(n)) + quiet, n - 1)
    padded = np.fft.rfft(deviation, 2 * n)
    covariance = np.fft.irfft(padded * np.conj(padded), 2 * n)[: most + 1] / n
    if covariance[0] <= 0:
        return 1
    is_large = np.abs(covariance[1:]) >= 2 * math.sqrt(math.log10(n) / n) * covariance[0]
    lag = _last_large(is_large, quiet)
    width = min(2 * max(lag, 1), most)
    k = np.arange(-width, width + 1)
    weight = np.clip(2 * (1 - np.abs(k) / width), 0, 1)
    weighted = weight * covariance[np.abs(k)]
    size = float(weighted.sum())
    if size <= 0:
        return 1
    bias = float((np.abs(k) * weighted).sum())
    length: int = math.ceil((2 * bias**2 / (4 / 3 * size**2)) ** (1 / 3) * n ** (1 / 3))
    return max(1, min(length, math.ceil(min(3 * math.sqrt(n), n / 3))))


def _flat(x: Values) -> Values:
    """Without its linear trend, which is no dependence between neighbours."""
    rows = np.arange(len(x)) - (len(x) - 1) / 2
    return np.asarray(x - x.mean() - rows * ((rows @ x) / (rows @ rows)))


def _last_large(is_large: np.ndarray[tuple[int], np.dtype[np.bool_]], quiet: int) -> int:
    """The lag behind which so many in a row are small; the last large one where there is none."""
    large = np.flatnonzero(np.r_[True, is_large])
    gaps = np.diff(np.r_[large, len(is_large) + 1]) - 1
    return int(large[np.argmax(gaps >= quiet)] if (gaps >= quiet).any() else large[-1])


def _resampled(x: Values, percentile: float, length: int) -> Values:
    """The percentile of each resample of blocks; linear between neighbours."""
    if percentile < 50:
        return -_resampled(-x, 100 - percentile, length)
    n = len(x)
    num_blocks = max(round(n / length), 1)
    size = num_blocks * length
    lower = int((size - 1) * percentile / 100)
    part = (size - 1) * percentile / 100 - lower
    # Counted from the largest: what lies far below the percentile need not be looked at.
    order = np.argsort(-x, kind="stable")
    top = order[: min(n, 4 * (size - lower) + 10 * length)]
    ranks = [size - 1 - lower, max(size - 2 - lower, 0)]
    generator = np.random.default_rng(SEED)
    out = np.empty(min(RESAMPLES, max(RESAMPLES_LEAST, WORK // n)))
    for i in range(len(out)):
        starts = np.bincount(generator.integers(0, n - length + 1, num_blocks), minlength=n)
        drawn = np.cumsum(starts)
        drawn[length:] -= drawn[:-length].copy()
        rows = top
        seen = np.cumsum(drawn[rows])
        if seen[-1] <= ranks[0]:
            rows = order
            seen = np.cumsum(drawn[rows])
        low, high = x[rows[np.searchsorted(seen, ranks, "right")]]
        out[i] = low + part * (high - low)
    return out


def _tail_error(x: Values, percentile: float, length: int) -> float:
    """Standard error of the log percentile if the tail is exponential, from all exceedances of a lower level."""
    n = len(x)
    beyond = 1 - percentile / 100
    level = _exceeded_by(x, max(TAIL * beyond, TAIL_LEAST / n))
    excess = float((x[x > level] - level).mean()) if (x > level).any() else 0.0
    above = x > _exceeded_by(x, max(TAIL * beyond, TAIL_LEAST / n, TAIL_CLUSTERS))
    rate = float(above.mean())
    if not 0 < rate < 1:
        return 0.0
    total = np.cumsum(np.r_[0.0, above - rate])
    in_block = total[length:] - total[:-length]
    clustering = max(1.0, float((in_block**2).mean()) / length / (rate * (1 - rate)) * n / (n - length))
    return excess * math.sqrt((1 - beyond) / beyond * clustering / n)


def _exceeded_by(x: Values, share: float) -> float:
    return float(np.quantile(x, 1 - min(share, TAIL_MOST)))


def _t(freedom: float) -> float:
    """Student's t for a two-sided 95 %, from the normal quantile (Abramowitz and Stegun 26.7.5)."""
    f = max(freedom, 2.0)
    z = Z
    return (
        z + (z**3 + z) / (4 * f) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f**2) + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * f**3)
    )
