"""Batches of any usual shape: a tensor, a tuple or list of tensors, a mapping with tensors in it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch

Batch = Any
IGNORED = -100
"""The label that torch's cross entropy leaves out unless told otherwise."""

_LABELS = ("labels", "label", "targets", "target", "y")


def tensors(batch: Batch) -> dict[Hashable, torch.Tensor]:
    """The tensors of a batch by their key or place."""
    if isinstance(batch, torch.Tensor):
        return {0: batch}
    items = batch.items() if isinstance(batch, Mapping) else enumerate(batch) if isinstance(batch, list | tuple) else ()
    return {key: value for key, value in items if isinstance(value, torch.Tensor)}


def replaced(batch: Batch, new: Mapping[Hashable, torch.Tensor]) -> Batch:
    """The batch with other tensors in the places given."""
    if isinstance(batch, torch.Tensor):
        return new.get(0, batch)
    if isinstance(batch, Mapping):
        return {**batch, **new}
    if isinstance(batch, list | tuple):
        return tuple(new.get(i, value) for i, value in enumerate(batch))
    return batch


def label_key(batch: Batch) -> Hashable | None:
    """Where the labels are: by their name, else the last of several tensors."""
    found = tensors(batch)
    if isinstance(batch, Mapping):
        return next((name for name in _LABELS if name in found), None)
    return list(found)[-1] if len(found) > 1 else None


def num_labels(batch: Batch) -> int:
    """How many labels count, 0 where the batch has none."""
    key = label_key(batch)
    return 0 if key is None else int((tensors(batch)[key] != IGNORED).sum())


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch where the model is."""
    return replaced(batch, {key: value.to(device, non_blocking=True) for key, value in tensors(batch).items()})
