"""Percentiles and places, as the sentences of this folder write them."""

from __future__ import annotations

from gradclip_cli.wording import span


def ordinal(percentile: float) -> str:
    """ "99th percentile", "99.9th percentile"."""
    whole = f"{percentile:.12g}"
    teen = whole[-2:] in ("11", "12", "13")
    ending = "th" if teen or "." in whole else {"1": "st", "2": "nd", "3": "rd"}.get(whole[-1], "th")
    return f"{whole}{ending} percentile"


def place(steps_known: bool, first: int, last: int | None = None) -> str:
    """ "step 412", "steps 412–430", or rows where the log has no steps."""
    name = "step" if steps_known else "row"
    return f"{name} {first:,}" if last is None or last == first else f"{name}s {span(first, last)}"
