"""One model on several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def distributed(model: nn.Module, how: str, device: torch.device) -> nn.Module:
    """The model as every rank calls it: the same on all (`ddp`), or a shard on each (`fsdp2`); itself where there is one rank."""
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    if how == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for module in model.modules():
            if isinstance(module, nn.ModuleList):
                for block in module:
                    fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


@contextmanager
def last_alone_is_shared(model: Any, *, last: bool) -> Iterator[None]:
    """Within, the gradients of a micro-batch are shared between ranks only if it is the last of its update."""
    if hasattr(model, "no_sync") and not last:
        with model.no_sync():
            yield
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(last)
        yield
    else:
        yield


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole(scalar: torch.Tensor) -> float:
    """The value over all ranks."""
    return float(scalar.full_tensor() if hasattr(scalar, "full_tensor") else scalar)


def total(square: torch.Tensor, how: str) -> float:
    """The root of a sum of squares, over all shards where there are some."""
    if how == "fsdp2":
        square = square.float()
        dist.all_reduce(square)
    return float(square.sqrt())
