"""Which ranks hold the shards of a parameter together."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

Group = tuple[list[int], list[int]]
"""Numbers of parameters, and the ranks that hold one copy of them together."""


def shard_groups(parameters: Mapping[int, torch.Tensor]) -> list[Group]:
    """Of the sharded parameters those that the same ranks hold; what a rank holds in full is left out."""
    flat = dict(_flattened())
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, parameter in parameters.items():
        ranks = flat.get(id(parameter)) or _ranks_of(parameter)
        if len(ranks) > 1:
            groups.setdefault(ranks, []).append(i)
    return [(tensors, list(ranks)) for ranks, tensors in groups.items()]


def _ranks_of(parameter: Any) -> tuple[int, ...]:
    """Of a DTensor; none of any other, and where this process holds nothing of it."""
    mesh, placements = getattr(parameter, "device_mesh", None), getattr(parameter, "placements", ())
    here = mesh.get_coordinate() if mesh is not None and any(map(_is_shard, placements)) else None
    if mesh is None or here is None:
        return ()
    copy = mesh.mesh[tuple(slice(None) if _is_shard(x) else c for x, c in zip(placements, here, strict=True))]
    return tuple(sorted(copy.reshape(-1).tolist()))


def _is_shard(placement: Any) -> bool:
    # A tensor that is sharded twice along one dimension has a placement of its own kind.
    return placement.is_shard() or type(placement).__name__ == "_StridedShard"


def _flattened() -> Iterator[tuple[int, tuple[int, ...]]]:
    """The `id` of every parameter that FSDP1 sharded, flat or as it was, and the ranks; one that it only replicates is left out."""
    for handle in fsdp1_handles():
        if handle.uses_sharded_strategy:
            ranks = tuple(torch.distributed.get_process_group_ranks(handle.process_group))
            for parameter in (handle.flat_param, *(handle.flat_param._params or ())):
                yield id(parameter), ranks


def fsdp1_handles() -> Iterator[Any]:
    """What every module that FSDP1 wraps keeps of the parameters it flattened; nothing where the script does not use FSDP1."""
    module = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    if module is None:
        return
    # `isinstance` would ask lazy proxies for their class and so wake them.
    for wrapped in [m for m in gc.get_objects() if issubclass(type(m), module.FullyShardedDataParallel)]:
        if (handle := getattr(wrapped, "_handle", None)) is not None:
            yield handle
