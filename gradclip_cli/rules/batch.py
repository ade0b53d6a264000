"""What stood out in the batch of a step, where our own recorder saw it."""

from __future__ import annotations

import numpy as np

from gradclip_cli.model.recorded import RankPart
from gradclip_cli.model.run import Run, Values
from gradclip_cli.wording import number, share

# Longer than usual by so much, and ignored labels beyond the usual by so much of all, are worth telling.
_LONG_TIMES = 1.5
_IGNORED_MORE = 0.2
_MIN_UPDATES = 8


def batch_of(run: Run, step: int) -> tuple[str, dict[str, float]]:
    """A clause for a finding ("; its longest sequence was 4,096, the usual one 512"), and its evidence; both empty where nothing is known.

    Args:
        step: As the recorder counts updates.
    """
    if run.recorded is None or not run.recorded.parts:
        return "", {}
    part = next(iter(run.recorded.parts.values()))
    i = int(np.searchsorted(part.steps, step))
    if i == len(part.steps) or part.steps[i] != step:
        return "", {}
    clauses: list[str] = []
    evidence: dict[str, float] = {}
    length, usual = _and_usual(part, "seq_len", i)
    if length >= _LONG_TIMES * usual:
        clauses.append(f"its longest sequence was {length:,.0f}, the usual one {usual:,.0f}")
        evidence |= {"longest_sequence": length, "usual_sequence": usual}
    ignored, usual = _and_usual(part, "ignored_fraction", i)
    if ignored >= usual + _IGNORED_MORE:
        clauses.append(f"{share(ignored)} of its labels were ignored, usually {share(usual)}")
        evidence |= {"ignored_fraction": ignored, "usual_ignored_fraction": usual}
    index = part.columns.get("batch_index", np.full(len(part.steps), np.nan))[i]
    if np.isfinite(index):
        clauses.append(f"it is batch {number(float(index))} of the data loader, counted from 0")
        evidence |= {"batch_index": float(index)}
    return "".join(f"; {clause}" for clause in clauses), evidence


def _and_usual(part: RankPart, name: str, i: int) -> tuple[float, float]:
    """The value at a row and the median of all; NaN, which compares with nothing, where there is none."""
    values: Values = part.columns.get(name, np.full(len(part.steps), np.nan))
    known = values[np.isfinite(values)]
    return float(values[i]), float(np.median(known)) if len(known) >= _MIN_UPDATES else np.nan
