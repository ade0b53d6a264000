"""What can be seen of the batches of each update: sizes, sequence lengths, ignored labels, the place in the data.

Two things are looked at, both by their shapes alone, so that nothing waits for a device: the arguments of outermost calls of modules (what
the model was given for this update), and what a `DataLoader` handed out (which, with a loop that fetches ahead, may be the batch after).
A batch of a loader belongs to the first call whose arguments have its shapes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import torch
from torch import nn
from torch.utils.data import dataloader

IGNORED = -100
"""The label that torch's cross entropy leaves out unless told otherwise (`ignore_index`)."""

_LABELS = frozenset(("labels", "label", "targets", "target"))
_IDS = frozenset(("index", "idx", "id", "sample_id", "example_id"))
# Batches that a loader handed out and no call has taken; more than any loop fetches ahead.
_MAX_WAITING = 64
_MAX_TENSORS = 32
_MAX_LABELS = 1 << 22


@dataclass(slots=True)
class _Batch:
    """One batch; what it does not tell is missing from `values`."""

    values: dict[str, float]
    shapes: frozenset[tuple[int, ...]] = field(default_factory=frozenset)


def _first(values: list[float]) -> float:
    return values[0]


_COMBINED: Mapping[str, Callable[[list[float]], float]] = {"batch_size": sum, "seq_len": max, "ignored_fraction": mean}


class BatchWatcher:
    """Looks at batches between `install` and `remove`; `take` gives what belongs to one update."""

    def __init__(self) -> None:
        self._waiting: deque[_Batch] = deque(maxlen=_MAX_WAITING)
        self._used: list[_Batch] = []
        self._inside = False
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Look at every batch from now on."""
        self._watch_loaders()
        self._watch_calls()

    def remove(self) -> None:
        """Take the patches out again."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def take(self) -> dict[str, float]:
        """What was seen since the last call: sizes added up over micro-batches, the longest sequence, the first place."""
        batches, self._used = self._used, []
        if not batches:
            # A loop whose modules cannot be seen (compiled as a whole): what was handed out is what was used.
            batches = list(self._waiting)
            self._waiting.clear()
        seen: dict[str, list[float]] = {}
        for batch in batches:
            for name, value in batch.values.items():
                seen.setdefault(name, []).append(value)
        return {name: _COMBINED.get(name, _first)(values) for name, values in seen.items()}

    def _watch_loaders(self) -> None:
        base: Any = dataloader._BaseDataLoaderIter
        real = base.__next__

        def __next__(iterator: Any) -> Any:
            data = real(iterator)
            # Data may be anything: what cannot be looked at is no reason to end a training.
            with suppress(Exception), torch._C.DisableTorchFunction():
                self._handed_out(data, iterator._num_yielded - 1)
            return data

        base.__next__ = __next__
        self._undo.append(lambda: setattr(base, "__next__", real))

    def _watch_calls(self) -> None:
        real = nn.Module.__call__

        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._inside or torch.compiler.is_compiling():
                return real(module, *args, **kwargs)
            self._inside = True
            try:
                with suppress(Exception), torch._C.DisableTorchFunction():
                    self._given(module, args, kwargs)
                return real(module, *args, **kwargs)
            finally:
                self._inside = False

        nn.Module.__call__ = __call__  # type: ignore[method-assign]
        self._undo.append(lambda: setattr(nn.Module, "__call__", real))

    def _handed_out(self, data: Any, index: int) -> None:
        if not torch.is_grad_enabled():
            return
        tensors = list(_tensors(data))
        self._waiting.append(_Batch(_values(tensors) | {"batch_index": float(index)}, _shapes(tensors)))

    def _given(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = list(_tensors(args)) + list(_tensors(kwargs))
        # What carries a gradient comes from another module, and a call within backward is a recomputation of a part.
        if not tensors or any(t.requires_grad for _, t in tensors) or torch._C._current_graph_task_id() != -1:
            return
        if next(module.parameters(), None) is None:
            return
        shapes = _shapes(tensors)
        origin = self._origin(shapes)
        if torch.is_grad_enabled():
            values = _values(tensors)
            self._used.append(_Batch((values if origin is None else origin.values | values), shapes))

    def _origin(self, shapes: frozenset[tuple[int, ...]]) -> _Batch | None:
        """The batch a call was made with; those handed out before it went elsewhere."""
        for i, batch in enumerate(self._waiting):
            if not batch.shapes or batch.shapes & shapes:
                for _ in range(i + 1):
                    self._waiting.popleft()
                return batch
        return None


def _tensors(data: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in nested lists and mappings, by the key they stand under."""
    if isinstance(data, torch.Tensor):
        yield name, data
    elif isinstance(data, Mapping) and depth < 3:
        for i, (key, value) in enumerate(data.items()):
            if i < _MAX_TENSORS:
                yield from _tensors(value, str(key), depth + 1)
    elif isinstance(data, list | tuple) and depth < 3:
        for value in data[:_MAX_TENSORS]:
            yield from _tensors(value, name, depth + 1)


def _shapes(tensors: list[tuple[str, torch.Tensor]]) -> frozenset[tuple[int, ...]]:
    return frozenset(tuple(t.shape) for _, t in tensors if t.dim())


def _values(tensors: list[tuple[str, torch.Tensor]]) -> dict[str, float]:
    values: dict[str, float] = {}
    sized = [t for _, t in tensors if t.dim()]
    if sized:
        values["batch_size"] = float(sized[0].shape[0])
    # Tokens are (batch, position), features (batch, position, channel); images have a dimension more.
    lengths = [t.shape[1] for t in sized if t.dim() == (3 if t.is_floating_point() else 2)]
    if lengths:
        values["seq_len"] = float(max(lengths))
    labels = _labels(tensors)
    if labels is not None and labels.device.type == "cpu" and 0 < labels.numel() <= _MAX_LABELS:
        values["ignored_fraction"] = float((labels == IGNORED).sum()) / labels.numel()
    for name, t in tensors:
        if name.lower() in _IDS and t.numel() and t.device.type == "cpu" and not t.is_floating_point():
            values["sample_id"] = float(t.reshape(-1)[0])
            break
    return values


def _labels(tensors: list[tuple[str, torch.Tensor]]) -> torch.Tensor | None:
    """The labels by their name, else the last of several tensors, where it holds integers."""
    named = next((t for name, t in tensors if name.lower() in _LABELS), None)
    if named is None and len(tensors) > 1 and not tensors[-1][0]:
        named = tensors[-1][1]
    return named if named is not None and named.dtype in (torch.int64, torch.int32) else None
