"""Where in the whole tensors the gradients of one rank lie, so that the files of all ranks can be put together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from gradclip_cli.watch.groups import fsdp1_handles

Box = tuple[list[int], list[int]]
"""Where a box begins in the tensor, and its shape."""

_Run = tuple[int, int]
"""Neighbouring indices: the first, and how many."""

# What is cut into more is told as unknown; readers take no more.
_MOST_BOXES = 128


class Shards:
    """Tells the places of gradients; asks once for as long as they stay what they are."""

    def __init__(self) -> None:
        self._seen: list[Any] | None = None
        self._told: str | None = None

    def told(self, named: Sequence[tuple[str, torch.Tensor]]) -> str | None:
        """What `gradclip_cli.clipping.shards` reads, as JSON; None where there is one rank.

        `{rank, world_size, tensors: {NAME: {shape, boxes: [[origin, shape]...], padding?} or {unknown: why}}}`. What the rank stores
        of a tensor are its boxes, one behind the other, and then the padding. A tensor that is not named is there as a whole.
        """
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return None
        seen = [(name, t.shape, getattr(t, "placements", None), id(getattr(t, "device_mesh", None))) for name, t in named]
        if seen != self._seen:
            self._seen = seen
            try:
                flat = dict(_flat_places())
            except AttributeError:
                # FSDP1 keeps them where it likes; without a place its tensors are known to be shards all the same, by the trace.
                flat = {}
            tensors = {name: _of_dtensor(t) if hasattr(t, "placements") else flat.get(id(t)) for name, t in named}
            places = {name: place for name, place in tensors.items() if place is not None}
            self._told = json.dumps({"rank": dist.get_rank(), "world_size": dist.get_world_size(), "tensors": places})
        return self._told


def _of_dtensor(tensor: Any) -> dict[str, Any]:
    mesh, shape = tensor.device_mesh, tuple(tensor.shape)
    here = mesh.get_coordinate()
    if here is None:
        return {"shape": shape, "boxes": []}
    runs = [[(0, n)] for n in shape]
    for placement, num, at in zip(tensor.placements, mesh.shape, here, strict=True):
        if placement.is_partial():
            return {"unknown": "each rank holds a summand of it (Partial)"}
        if type(placement).__name__ == "_StridedShard":
            # Sharded by a dimension of the mesh behind this one first, and by this one within.
            parts = [_chunk(runs[placement.dim], placement.split_factor, k) for k in range(placement.split_factor)]
            runs[placement.dim] = _united(run for part in parts for run in _chunk(part, num, at))
        elif placement.is_shard():
            runs[placement.dim] = _chunk(runs[placement.dim], num, at)
        elif not placement.is_replicate():
            return {"unknown": f"it is placed as {placement}"}
    local = tuple(tensor.to_local().shape)
    if local != tuple(sum(n for _, n in r) for r in runs):
        return {"unknown": f"its shard of {list(local)} is not the one that its placements ask for"}
    if not runs:
        return _place(shape, [([], [])])
    first, *rest = runs
    if any(len(r) > 1 for r in rest):
        return {"unknown": "its shard is many small pieces of it"}
    return _place(shape, [([start, *(r[0][0] if r else 0 for r in rest)], [n, *local[1:]]) for start, n in first])


def _place(shape: Sequence[int], boxes: list[Box], padding: int = 0) -> dict[str, Any]:
    if len(boxes) > _MOST_BOXES:
        return {"unknown": "its shard is many small pieces of it"}
    return {"shape": shape, "boxes": boxes} | ({"padding": padding} if padding else {})


def _chunk(runs: Sequence[_Run], num: int, k: int) -> list[_Run]:
    """The indices that `torch.chunk` into `num` gives to chunk `k`, which may be none."""
    size = -(-sum(n for _, n in runs) // num)
    begin, end = k * size, (k + 1) * size
    found, at = [], 0
    for start, n in runs:
        low, high = max(begin, at), min(end, at + n)
        if low < high:
            found.append((start + low - at, high - low))
        at += n
    return found


def _united(runs: Iterator[_Run]) -> list[_Run]:
    """Those that follow on each other as one."""
    found: list[_Run] = []
    for start, n in runs:
        if found and sum(found[-1]) == start:
            found[-1] = (found[-1][0], found[-1][1] + n)
        else:
            found.append((start, n))
    return found


def _flat_places() -> Iterator[tuple[int, dict[str, Any]]]:
    """Of what FSDP1 flattened and sharded: the `id` of a gradient, and its place."""
    for handle in fsdp1_handles():
        flat = getattr(handle, "flat_param", None)
        infos = getattr(flat, "_shard_param_infos", None)
        if flat is None or infos is None:
            continue
        if flat._params is None:
            if flat.grad is not None:
                yield id(flat.grad), _of_flat(flat, infos)
            continue
        for parameter, shape, dense, info in zip(flat._params, flat._shapes, flat._contiguities, infos, strict=True):
            if parameter.grad is not None:
                yield id(parameter.grad), _of_original(shape, info) if dense else {"unknown": "FSDP1 flattened it in another order"}


def _of_flat(flat: Any, infos: Sequence[Any]) -> dict[str, Any]:
    """A flat parameter as a whole (`use_orig_params=False`), which is padded at its end."""
    whole, local = flat._unpadded_unsharded_size.numel(), flat.grad.numel()
    begins = [
        end - n + info.intra_param_start_idx - info.offset_in_shard
        for end, n, info in zip(accumulate(flat._numels), flat._numels, infos, strict=True)
        if info.in_shard
    ]
    length = min(local, whole - begins[0]) if begins else 0
    return _place([whole], [([begins[0]], [length])] if length else [], local - length)


def _of_original(shape: Sequence[int], info: Any) -> dict[str, Any]:
    """One of the parameters that were flattened together (`use_orig_params=True`)."""
    if not info.in_shard:
        return _place(shape, [])
    return _place(shape, list(boxes_of_range(shape, info.intra_param_start_idx, info.intra_param_end_idx + 1)))


def boxes_of_range(shape: Sequence[int], begin: int, end: int) -> Iterator[Box]:
    """The boxes that elements `begin` to `end` of a contiguous tensor fill, in their order: part of a row, whole rows, part of a row."""
    if begin >= end:
        return
    if len(shape) < 2:
        yield [begin] * len(shape), [end - begin] * len(shape)
        return
    row = prod(shape[1:])
    (i, first), (j, last) = divmod(begin, row), divmod(end, row)
    if first or i == j:
        for origin, size in boxes_of_range(shape[1:], first, last if i == j else row):
            yield [i, *origin], [1, *size]
        if i == j:
            return
        i += 1
    if i < j:
        yield [i, *(0 for _ in shape[1:])], [j - i, *shape[1:]]
    for origin, size in boxes_of_range(shape[1:], 0, last):
        yield [j, *origin], [1, *size]
