"""Norms of gradients at the price of reading them once, without waiting for the device."""

from __future__ import annotations

import torch

from gradclip_cli.watch.states import local

# float32 sums of squares lose digits with the length on a CPU (1 % at 1e8 elements); rows of this length do not,
# and cost the same.
_ROW = 4096
_LARGE = 1 << 16


@torch.no_grad()
def tensor_norms(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """The L2 norm of each gradient (of the local shard of a sharded one), 0-dim, float32 or float64, on its device."""
    norms: list[torch.Tensor | None] = [None] * len(gradients)
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
    for i, gradient in enumerate(gradients):
        values = local(gradient)
        if values.device.type == "cpu" and values.numel() > _LARGE and values.dtype == torch.float32:
            norms[i] = _in_rows(values)
        else:
            groups.setdefault((values.device, values.dtype), []).append((i, values))
    for (_, dtype), members in groups.items():
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else None
        tensors = [t if t.is_floating_point() or t.is_complex() else t.float() for _, t in members]
        for (i, _), norm in zip(members, torch._foreach_norm(tensors, 2.0, dtype=wide), strict=True):
            norms[i] = norm
    return [n for n in norms if n is not None]


def _in_rows(values: torch.Tensor) -> torch.Tensor:
    flat = values.reshape(-1)
    whole = flat.numel() // _ROW * _ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1).double()
    squares = torch.dot(rows, rows)
    if whole < flat.numel():
        squares = squares + torch.linalg.vector_norm(flat[whole:]).double().square()
    return squares.sqrt()
