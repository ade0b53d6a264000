"""Sharded tensors in a recorded run: the norms that each rank holds of its shards, put together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.recorded import RankPart, Recorded, ShardGroup, shard_groups_of

_Floats = npt.NDArray[np.float64]
# Ranks that tell one norm from before a clip within this have computed it together.
_SAME = 1e-5
# Norms of one replicated gradient differ by less.
_REPLICATED = 1e-3


def whole(recorded: Recorded) -> tuple[RankPart, str]:
    """The first rank's part with the norms of all shards, and what is to be said of it.

    Each norm is the root of the sum of squares over the ranks that hold a copy together; tensors that every rank holds in full
    count once. A norm from before a clip on which all ranks agree is that of the whole already. Where a rank is missing, or took
    other updates, the norms stay those of this rank.
    """
    first = recorded.parts[min(recorded.parts)]
    held = shard_groups_of(first.events)
    if recorded.world_size < 2 or not held:
        return first, "" if all(map(partial(_is_replica, first), recorded.parts.values())) else _own_gradients(first)
    columns = {name: values.copy() for name, values in first.columns.items()}
    norms = first.tensor_norms.copy()
    for o, groups in held.items():
        ranks = {r for group in groups for r in group.ranks}
        if not ranks <= recorded.parts.keys() or not all(_goes_with(first, recorded.parts[r]) for r in ranks):
            return first, f"the gradients are sharded, and the ranks do not go together: the norms are those of rank {first.rank}'s shards"
        rows = columns["optimizer"] == o if "optimizer" in columns else np.ones(len(first.steps), np.bool_)
        _put_together(columns, norms, rows, first, [(group, [recorded.parts[r] for r in group.ranks]) for group in groups])
    note = "the norms are those over the shards of all ranks"
    sharded = {t for groups in held.values() for group in groups for t in group.tensors}
    if not all(_is_replica(first, part, but=sharded) for part in recorded.parts.values()):
        note = f"of sharded tensors {note}; {_own_gradients(first)}"
    return replace(first, columns=columns, tensor_norms=norms), note


def _own_gradients(first: RankPart) -> str:
    why = "stages, experts, never reduced, or clipped on some only"
    return f"ranks used gradients of their own ({why}): the norms are those of rank {first.rank}"


def _is_replica(first: RankPart, part: RankPart, but: Collection[int] = ()) -> bool:
    """Whether a rank used the same gradients, as far as their norms tell; a process that trains for itself is no rank."""
    if part.header.get("world_size") == 1:
        return True
    rest = [t for t in range(len(first.tensors)) if t not in but]
    if len(first.tensors) != len(part.tensors) or any(first.tensors[t] != part.tensors[t] for t in rest):
        return False
    # One that was stopped elsewhere tells nothing of its gradients, but that it is no other model.
    a, b = first.tensor_norms[:, rest], part.tensor_norms[:, rest]
    return not _goes_with(first, part) or np.allclose(a, b, rtol=_REPLICATED, atol=0, equal_nan=True)


def _goes_with(first: RankPart, part: RankPart) -> bool:
    """Whether the rows and columns of two ranks mean the same."""
    a, b = (p.columns.get("optimizer", np.zeros(len(p.steps))) for p in (first, part))
    same = np.array_equal(first.steps, part.steps) and np.array_equal(a, b, equal_nan=True)
    return same and first.tensor_norms.shape == part.tensor_norms.shape


def _put_together(
    columns: dict[str, _Floats],
    norms: npt.NDArray[np.float32],
    rows: npt.NDArray[np.bool_],
    first: RankPart,
    groups: Sequence[tuple[ShardGroup, Sequence[RankPart]]],
) -> None:
    for group, parts in groups:
        tensors = _columns_of(group, first)
        squares = [np.square(p.tensor_norms[rows][:, tensors].astype(np.float64)) for p in parts]
        # A rank without a gradient for a tensor adds nothing; where none has one, there is none.
        there = np.any([~np.isnan(s) for s in squares], axis=0)
        norms[np.flatnonzero(rows)[:, None], tensors] = np.where(there, np.sqrt(np.nansum(squares, axis=0)), np.nan)
    if "grad_norm_used" in columns:
        columns["grad_norm_used"][rows] = _over_ranks("grad_norm_used", rows, first, groups)
    if "grad_norm" in columns:
        before = _column(first, "grad_norm", rows)
        others = [_column(p, "grad_norm", rows) for _, parts in groups for p in parts]
        clipped = np.isfinite(_column(first, "clip_coef", rows))
        agreed = clipped & np.all([np.isclose(b, before, rtol=_SAME, atol=0) for b in others], axis=0)
        columns["grad_norm"][rows] = np.where(agreed, before, _over_ranks("grad_norm", rows, first, groups))


def _columns_of(group: ShardGroup, part: RankPart) -> npt.NDArray[np.int64]:
    return np.array(sorted(t for t in group.tensors if t < part.tensor_norms.shape[1]), np.int64)


def _column(part: RankPart, name: str, rows: npt.NDArray[np.bool_]) -> _Floats:
    return part.columns[name][rows] if name in part.columns else np.full(int(rows.sum()), np.nan)


def _over_ranks(
    name: str, rows: npt.NDArray[np.bool_], first: RankPart, groups: Sequence[tuple[ShardGroup, Sequence[RankPart]]]
) -> _Floats:
    """Root of the sum of squares: of what the first rank holds in full, and of the shards of all. How a rank's square divides among
    them, the norms of its tensors tell."""
    in_full = np.square(_column(first, name, rows))
    total = np.zeros_like(in_full)
    for group, parts in groups:
        for part in parts:
            shards = np.square(_column(part, name, rows)) * _fraction(group, part, rows)
            total += shards
            if part is first:
                in_full -= shards
    whole: _Floats = np.sqrt(total + np.maximum(in_full, 0.0))
    return whole


def _fraction(group: ShardGroup, part: RankPart, rows: npt.NDArray[np.bool_]) -> _Floats:
    squares = np.square(part.tensor_norms[rows].astype(np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction: _Floats = np.nansum(squares[:, _columns_of(group, part)], axis=1) / np.nansum(squares, axis=1)
    return np.where(np.isnan(fraction), 0.0, fraction)
