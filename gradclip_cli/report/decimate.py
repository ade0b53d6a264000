"""Fewer points, the same picture."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.run import Steps, Values

Floats = npt.NDArray[np.float64]


def since(steps: Steps, first: int) -> Floats:
    """Steps counted from `first`, exact for any int64 (steps of 10**18 have neighbours that float64 cannot tell apart)."""
    return (steps - np.int64(first)).view(np.uint64).astype(np.float64)


def keep(x: Floats, values: Values, num_bins: int) -> npt.NDArray[np.intp]:
    """Indices of the points that draw the same line on `num_bins` pixel columns, increasing.

    Of every bin the first, the last, the smallest and the largest finite value (M4; Jugel et al.,
    "M4: A Visualization-Oriented Time Series Data Aggregation", VLDB 2014), so no extreme is ever lost.
    Bins divide the axis, not the points: a stretch that was logged rarely keeps its shape beside a dense one.

    Args:
        x: Non-decreasing, shape (n,).
        values: Shape (n,); points that are not finite are left out.
    """
    finite = np.isfinite(values)
    places = None if finite.all() else np.flatnonzero(finite)
    if places is not None:
        x, values = x[places], values[places]
    n = len(values)
    if n <= 4 * num_bins:
        kept = np.arange(n)
    else:
        edges = np.linspace(x[0], x[-1], num_bins + 1)[:-1]
        starts = np.unique(np.searchsorted(x, edges))
        bins = [(a, values[a:b]) for a, b in pairwise([*starts.tolist(), n])]
        kept = np.unique([[a, a + v.argmin(), a + v.argmax(), a + len(v) - 1] for a, v in bins])
    return kept if places is None else places[kept]


def line(x: Floats, values: Values, num_bins: int) -> tuple[Floats, Floats]:
    """A polyline of the finite values on `num_bins` columns, with a NaN where non-finite values leave a gap wide enough to see."""
    kept = keep(x, values, num_bins)
    if len(kept) < 2:
        return x[kept], values[kept]
    bad_before = np.cumsum(~np.isfinite(values))[kept]
    column = (x[-1] - x[0]) / num_bins
    gaps = np.flatnonzero((np.diff(bad_before) > 0) & (np.diff(x[kept]) > 2 * column)) + 1
    return np.insert(x[kept], gaps, np.nan), np.insert(values[kept], gaps, np.nan)
