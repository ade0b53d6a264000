"""Sharded tensors in a recorded run: the norms that each rank holds of its shards, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.recorded import RankPart, Recorded, Shards, shards_of

_Squares = npt.NDArray[np.float64]
# Ranks that tell one norm from before a clip within this have computed it together.
_SAME = 1e-5


def whole(recorded: Recorded) -> tuple[RankPart, str]:
    """The first rank's part with the norms of all shards, and what is to be said of it.

    Each norm is the root of the sum of squares over the ranks that hold a copy together; tensors that every rank holds in full
    count once. A norm from before a clip on which all ranks agree is that of the whole already. Where a rank is missing, or took
    other updates, the norms stay those of this rank.
    """
    first = recorded.parts[min(recorded.parts)]
    if recorded.world_size < 2 or not (held := shards_of(first.events, recorded.parts)):
        return first, ""
    columns = {name: values.copy() for name, values in first.columns.items()}
    norms = first.tensor_norms.copy()
    for o, shards in held.items():
        parts = [recorded.parts[r] for r in {first.rank, *shards.ranks} & recorded.parts.keys()]
        if len(parts) < len(shards.ranks) or not all(_goes_with(first, p) for p in parts):
            return first, f"the gradients are sharded, and the ranks do not go together: the norms are those of rank {first.rank}'s shards"
        rows = columns["optimizer"] == o if "optimizer" in columns else np.ones(len(first.steps), np.bool_)
        _put_together(columns, norms, rows, parts, shards)
    return replace(first, columns=columns, tensor_norms=norms), "the norms are those over the shards of all ranks"


def _goes_with(first: RankPart, part: RankPart) -> bool:
    """Whether the rows and columns of two ranks mean the same."""
    a, b = (p.columns.get("optimizer", np.zeros(len(p.steps))) for p in (first, part))
    same = np.array_equal(first.steps, part.steps) and np.array_equal(a, b, equal_nan=True)
    return same and first.tensor_norms.shape == part.tensor_norms.shape


def _put_together(
    columns: dict[str, _Squares], norms: npt.NDArray[np.float32], rows: npt.NDArray[np.bool_], parts: Sequence[RankPart], shards: Shards
) -> None:
    tensors = np.array(sorted(t for t in shards.tensors if t < norms.shape[1]), np.int64)
    squares = [np.square(p.tensor_norms[rows].astype(np.float64)) for p in parts]
    # A rank without a gradient for a tensor adds nothing; where none has one, there is none.
    sharded = [s[:, tensors] for s in squares]
    there = np.any([~np.isnan(s) for s in sharded], axis=0)
    norms[np.flatnonzero(rows)[:, None], tensors] = np.where(there, np.sqrt(np.nansum(sharded, axis=0)), np.nan)
    in_full = [np.nansum(np.delete(s, tensors, axis=1), axis=1) for s in squares]
    used = [_column(p.columns, "grad_norm_used", rows) for p in parts]
    before = [_column(p.columns, "grad_norm", rows) for p in parts]
    if "grad_norm_used" in columns:
        columns["grad_norm_used"][rows] = _over_ranks(used, used, in_full)
    if "grad_norm" in columns:
        clipped = np.isfinite(_column(parts[0].columns, "clip_coef", rows))
        agreed = clipped & np.all([np.isclose(b, before[0], rtol=_SAME, atol=0) for b in before], axis=0)
        columns["grad_norm"][rows] = np.where(agreed, before[0], _over_ranks(before, used, in_full))


def _column(columns: Mapping[str, _Squares], name: str, rows: npt.NDArray[np.bool_]) -> _Squares:
    return columns[name][rows] if name in columns else np.full(int(rows.sum()), np.nan)


def _over_ranks(norms: Sequence[_Squares], used: Sequence[_Squares], in_full: Sequence[_Squares]) -> _Squares:
    """Root of the sum of squares; of what a rank holds in full, the part that its `used` norm tells."""
    with np.errstate(divide="ignore", invalid="ignore"):
        fractions = [np.where(full > 0, np.minimum(full / np.square(u), 1.0), 0.0) for full, u in zip(in_full, used, strict=True)]
        shards = [np.square(n) * (1 - f) for n, f in zip(norms, fractions, strict=True)]
        total: _Squares = np.sqrt(np.sum(shards, axis=0) + np.square(norms[0]) * fractions[0])
        return total
