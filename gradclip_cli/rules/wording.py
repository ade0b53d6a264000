"""What the rules share in speaking: numbers, steps, and saying that a rule could not judge."""

from __future__ import annotations

from gradclip_cli.model.run import Run
from gradclip_cli.wording import count, number, span, times

__all__ = ["Unjudged", "count", "number", "place", "times", "unit"]


class Unjudged(Exception):
    """A rule that cannot judge this run; the reason stands in every report."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def place(run: Run, first: int, last: int | None = None) -> str:
    """ "step 412", "steps 412–430", or rows where the log has no steps."""
    name = "step" if run.steps_known else "row"
    return f"{name} {first:,}" if last is None or last == first else f"{name}s {span(first, last)}"


def unit(run: Run, num: int) -> str:
    """ "3 steps", "1 row"."""
    return count(num, "step" if run.steps_known else "row")
