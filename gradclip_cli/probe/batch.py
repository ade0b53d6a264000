"""Batches of any usual shape: a tensor, a tuple or list of tensors, a mapping with tensors in it."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, MutableMapping
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
    """The batch with other tensors in the places given, as what it is: a named tuple, a mapping with methods of its own."""
    if isinstance(batch, torch.Tensor):
        return new.get(0, batch)
    if isinstance(batch, MutableMapping):
        other = copy.copy(batch)
        other.update(new)
        return other
    if isinstance(batch, Mapping):
        return {**batch, **new}
    if isinstance(batch, list | tuple):
        values = [new.get(i, value) for i, value in enumerate(batch)]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
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
    """The batch where the model is, and what lies in it."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping | list | tuple):
        items = list(batch.items()) if isinstance(batch, Mapping) else list(enumerate(batch))
        moved = {key: other for key, value in items if (other := on_device(value, device)) is not value}
        return replaced(batch, moved) if moved else batch
    return batch
