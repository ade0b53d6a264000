"""Norms of gradients at the price of reading them once, without waiting for the device."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import torch

from gradclip_cli.watch.states import is_small, local

# float32 sums of squares lose digits with the length on a CPU (1 % at 1e8 elements); in rows of this length they do not,
# and cost the same.
_ROW = 1 << 12
_LARGE = 1 << 16
# From so many small tensors of a CPU on a call for each takes longer than bringing them together.
_MANY = 1000


@torch.no_grad()
def tensor_norms(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """The L2 norm of each gradient (of the local shard of a sharded one), float32 or float64, in their order.

    They stay where they are: a vector for each stretch of gradients of one device and type, which nearly always is all.
    """
    if len(gradients) >= _MANY and all(map(is_small, gradients)):
        return [_small_norms(gradients)]
    return [torch.stack(list(stretch)) for _, stretch in groupby(_norms_one_by_one(gradients), lambda n: (n.device, n.dtype))]


def _small_norms(gradients: list[torch.Tensor]) -> torch.Tensor:
    values = torch._utils._flatten_dense_tensors(gradients).double().numpy()
    starts = np.cumsum([0, *(g.numel() for g in gradients[:-1])])
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(np.sqrt(np.add.reduceat(np.square(values), starts)))


def _norms_one_by_one(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    norms: list[torch.Tensor | None] = [None] * len(gradients)
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
    for i, gradient in enumerate(gradients):
        # Every microsecond here is taken some hundred times a step.
        values = gradient if type(gradient) is torch.Tensor and gradient.layout is torch.strided else _values(gradient)
        if not (values.is_floating_point() or values.is_complex()):
            values = values.float()
        if values.device.type == "cpu" and values.numel() > _LARGE:
            values = _row_norms(values)
        groups.setdefault((values.device, values.dtype), []).append((i, values))
    for (_, dtype), members in groups.items():
        for (i, _), norm in zip(members, torch._foreach_norm([t for _, t in members], 2.0, dtype=_wide(dtype)), strict=True):
            norms[i] = norm
    return [n for n in norms if n is not None]


def _values(gradient: torch.Tensor) -> torch.Tensor:
    """Numbers whose norm is that of the gradient."""
    gradient = gradient.detach()
    if gradient.layout is torch.sparse_coo and not gradient.is_coalesced():
        return _summed_rows(gradient)
    return local(gradient)


def _summed_rows(gradient: torch.Tensor) -> torch.Tensor:
    """The rows of a sparse gradient, those of one place added up. As many as before: `coalesce` waits to learn how many are left."""
    values = gradient._values()
    if not values.shape[0]:
        return values
    values = values.to(_wide(values.dtype) or values.dtype)
    places = torch.zeros_like(gradient._indices()[0])
    for index, size in zip(gradient._indices(), gradient.shape, strict=False):
        places = places * size + index
    order = places.argsort()
    places = places[order]
    row = torch.cat((torch.zeros_like(places[:1]), (places[1:] != places[:-1]).cumsum(0)))
    summed = torch.zeros_like(values).index_add_(0, row, values[order])
    return torch.view_as_real(summed) if summed.is_complex() else summed


def _row_norms(values: torch.Tensor) -> torch.Tensor:
    """Numbers whose norm is that of the tensor: the norms of rows of it."""
    dtype = _wide(values.dtype)
    rows: torch.Tensor
    if values.numel() % _ROW == 0 and values.is_contiguous():
        rows = torch.linalg.vector_norm(values.view(-1, _ROW), dim=1, dtype=dtype)
    else:
        flat = values.reshape(-1)
        whole = flat.numel() // _ROW * _ROW
        rows = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1, dtype=dtype)
        rows = torch.cat((rows, torch.linalg.vector_norm(flat[whole:], dtype=dtype).view(1)))
    if rows.numel() > _ROW:
        rows = torch.linalg.vector_norm(rows, dtype=torch.float64).to(rows.dtype).view(1)
    return rows


def _wide(dtype: torch.dtype) -> torch.dtype | None:
    """What to add up in, where it is not the type itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else None
