"""What the rules share in speaking: numbers, steps, and saying that a rule could not judge."""

from __future__ import annotations

import math

from gradclip_cli.model import Run


class Unjudged(Exception):
    """A rule that cannot judge this run; the reason stands in every report."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def number(x: float) -> str:
    """Three significant digits, plainly where that reads well."""
    if not math.isfinite(x):
        return str(x)
    if x and not 1e-3 <= abs(x) < 1e5:
        return f"{x:.2e}"
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def times(ratio: float) -> str:
    """A factor: "12x", "3.4x", "1.2e+06x"."""
    return f"{ratio:.2g}x" if ratio < 10 else f"{ratio:,.0f}x" if ratio < 1e5 else f"{ratio:.1e}x"


def place(run: Run, first: int, last: int | None = None) -> str:
    """ "step 412", "steps 412-430", or rows where the log has no steps."""
    unit = "step" if run.steps_known else "row"
    if last is None or last == first:
        return f"{unit} {first}"
    return f"{unit}s {first}-{last}"


def unit(run: Run, count: int) -> str:
    """ "3 steps", "1 row"."""
    name = "step" if run.steps_known else "row"
    return f"{count:,} {name}{'' if count == 1 else 's'}"
