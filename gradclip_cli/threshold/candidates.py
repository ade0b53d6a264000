"""What a threshold would have done to norms that were logged before clipping."""

from __future__ import annotations

import numpy as np

from gradclip_cli.model.run import Values
from gradclip_cli.model.threshold import Candidate

EPS = 1e-6
"""Of `torch.nn.utils.clip_grad_norm_`."""
PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
COMMON = (0.1, 0.5, 1.0, 5.0)


def coefficient(norm: Values, max_norm: float) -> Values:
    """min(1, max_norm / (norm + 1e-6)), as PyTorch multiplies the gradients."""
    return np.minimum(1.0, max_norm / (norm + EPS))


def candidates(norms: Values, exploding: Values, recommended: tuple[float, float] | None, own: float | None) -> tuple[Candidate, ...]:
    """The table, from low to high: percentiles, values in common use, the run's own bound, the recommendation.

    Args:
        norms: Healthy norms, shape (n,), n >= 1.
        exploding: Norms of exploding steps, shape (k,).
        recommended: Percentile and value.
        own: The run's `max_norm`, where it is known and clips.
    """
    ordered = np.sort(norms)
    rows: list[tuple[str, float | None, float]] = [
        (f"p{p:g}", p, v) for p, v in zip(PERCENTILES, percentile(norms, PERCENTILES), strict=True)
    ]
    rows += [(f"{v:g}", None, v) for v in COMMON if v != own]
    if own is not None:
        rows.append(("own", None, own))
    if recommended is not None:
        rows = [row for row in rows if row[1] != recommended[0]]
        rows.append(("recommended", *recommended))
    rows.sort(key=lambda row: (row[2], row[0]))
    return tuple(_candidate(label, p, value, ordered, exploding) for label, p, value in rows)


def percentile(norms: Values, which: tuple[float, ...]) -> list[float]:
    """Linear between neighbours."""
    return [float(v) for v in np.percentile(norms, which)]


def _candidate(label: str, p: float | None, value: float, ordered: Values, exploding: Values) -> Candidate:
    clipped = ordered[np.searchsorted(ordered, value, "right") :]
    coef = coefficient(clipped, value)
    return Candidate(
        label=label,
        percentile=p,
        max_norm=value,
        clipped_fraction=len(clipped) / len(ordered),
        exploding_caught=int((exploding > value).sum()),
        median_coef=float(np.median(coef)) if len(coef) else 1.0,
        worst_coef=float(coef[-1]) if len(coef) else 1.0,
    )
