"""Whether one threshold fits the whole run: its parts side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradclip_cli.model.run import Steps, Values
from gradclip_cli.model.threshold import AdaptiveSeries, Phase
from gradclip_cli.threshold.candidates import percentile
from gradclip_cli.threshold.evidence import Evidence

QUARTERS, LEAST_ROWS = 4, 15
"""Quarters of a run, fewer parts where they would have less than fifteen norms."""
STRONG_DRIFT = 2.0
"""The usual norm of one part is twice that of another."""


def phases(seen: Sequence[Evidence], p: float, max_norm: float | None) -> tuple[Phase, ...]:
    """The quarters of one run, or pooled runs one by one."""
    if len(seen) > 1:
        return tuple(_phase(e.run.source, e.run.steps_known, e.steps, e.norms, p, max_norm) for e in seen)
    e = seen[0]
    parts = min(QUARTERS, len(e.norms) // LEAST_ROWS)
    if parts < 2:
        return ()
    cut = zip(np.array_split(e.steps, parts), np.array_split(e.norms, parts), strict=True)
    return tuple(_phase("", e.run.steps_known, steps, norms, p, max_norm) for steps, norms in cut)


def drift(parts: Sequence[Phase]) -> float:
    """Largest usual norm / smallest."""
    medians = [phase.median for phase in parts]
    return max(medians) / min(medians) if len(medians) > 1 else 1.0


def phase_bounds(series: AdaptiveSeries, steps: Steps, parts: int) -> tuple[float, ...]:
    """Median bound of an adaptive rule in each part of the healthy steps."""
    out = []
    for part in np.array_split(steps, parts):
        a, b = np.searchsorted(series.steps, [part[0], part[-1] + 1])
        bound = series.bound[a:b]
        bound = bound[np.isfinite(bound)]
        out.append(float(np.median(bound)) if len(bound) else float("nan"))
    return tuple(out)


def _phase(source: str, steps_known: bool, steps: Steps, norms: Values, p: float, max_norm: float | None) -> Phase:
    median, value = percentile(norms, (50.0, p))
    return Phase(
        source=source,
        first_step=int(steps[0]) if steps_known else None,
        last_step=int(steps[-1]) if steps_known else None,
        count=len(norms),
        median=median,
        max_norm=value,
        clipped_fraction=float("nan") if max_norm is None else float(np.mean(norms > max_norm)),
    )
