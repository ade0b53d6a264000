"""What a gradient was at one moment, exactly enough to tell later what became of it.

A gradient is too large to keep; its norm in float64, its extremes and a few hundred of its elements tell
a scaling from a clamp from anything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch

# Elements of one block: its float64 copy stays in the processor's cache.
_BLOCK = 1 << 18
_SAMPLES = 256
# Tensors of so many elements and fewer are read together.
_SMALL = 1 << 12
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """One gradient at one moment.

    Attributes:
        norm: L2 norm of the (local) gradient, accumulated in float64.
        largest: Largest magnitude, of the finite elements.
        sample: float64, up to 256 elements spread evenly over the tensor.
        nonfinite: How many elements are nan or inf.
        tolerance: Relative error that one operation in this dtype may make.
    """

    norm: float
    largest: float
    sample: np.ndarray[Any, np.dtype[np.float64]]
    nonfinite: int
    tolerance: float

    @property
    def is_zero(self) -> bool:
        return self.largest == 0 and self.nonfinite == 0


def local(gradient: torch.Tensor) -> torch.Tensor:
    """The dense values this process holds: the shard of a DTensor, the values of a sparse gradient, both parts of complex numbers."""
    gradient = gradient.detach()
    if hasattr(gradient, "to_local"):
        gradient = gradient.to_local()
    if gradient.layout != torch.strided:
        gradient = gradient.coalesce().values() if gradient.layout == torch.sparse_coo else gradient.values()
    return torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient


def state_of(gradient: torch.Tensor, divide_by: float = 1.0) -> State:
    """Read a gradient. Synchronises with its device.

    Args:
        divide_by: A loss scale that is still in it.
    """
    with torch.no_grad(), torch._C.DisableTorchFunction():
        values = local(gradient)
        flat = values.reshape(-1)
        tolerance = _tolerance(values.dtype)
        size = flat.numel()
        if size == 0:
            return State(0.0, 0.0, np.empty(0), 0, tolerance)
        squares, largest, nonfinite = 0.0, 0.0, 0
        for start in range(0, size, _BLOCK):
            block = flat[start : start + _BLOCK].double()
            square = float(torch.dot(block, block))
            top = float(block.abs().max())
            if not np.isfinite(top) or not np.isfinite(square):
                finite = torch.isfinite(block)
                nonfinite += int(block.numel() - finite.sum())
                top = float(torch.where(finite, block, 0.0).abs().max())
            squares, largest = squares + square, max(largest, top)
        step = max(1, size // _SAMPLES)
        sample = flat[::step][:_SAMPLES].double().cpu().numpy() / divide_by
        return State(float(np.sqrt(squares)) / divide_by, largest / divide_by, sample, nonfinite, tolerance)


class Reader:
    """Reads gradients time after time. One whose bits are still the same has the very state it had.

    Small tensors of a CPU are read together: a call for each would take most of the time of a model with many.
    """

    def __init__(self) -> None:
        self._small = _Small([], [], np.empty(0), {})

    def read(self, gradients: Mapping[int, torch.Tensor | None]) -> dict[int, State | None]:
        """The state of each by its number; None where there is no gradient."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            small = {i: g for i, g in gradients.items() if g is not None and is_small(g)}
            self._small = _read_small(small, self._small)
            read = self._small.states
            return {i: read[i] if i in read else None if g is None else state_of(g) for i, g in gradients.items()}


@dataclass(frozen=True, eq=False, slots=True)
class _Small:
    """Small tensors, one behind the other.

    Attributes:
        keys: Their numbers.
        sizes: How many elements each has.
        values: Of all of them, in the widest of their types.
        states: By number.
    """

    keys: list[int]
    sizes: list[int]
    values: np.ndarray[Any, np.dtype[Any]]
    states: dict[int, State | None]


def is_small(g: torch.Tensor) -> bool:
    """Whether it is a plain tensor of a CPU with so few elements that a call of its own takes longer than reading them."""
    # Asked of every tensor at every look: the answers that cost least come first.
    return type(g) is torch.Tensor and 0 < g.numel() <= _SMALL and g.is_floating_point() and g.is_cpu and g.layout is torch.strided


def _read_small(gradients: Mapping[int, torch.Tensor], before: _Small) -> _Small:
    """The state of each of several dense tensors."""
    if not gradients:
        return _Small([], [], np.empty(0), {})
    keys, tensors = list(gradients), list(gradients.values())
    sizes = [g.numel() for g in tensors]
    # Of one tensor alone it would give that very memory.
    together = torch._utils._flatten_dense_tensors(tensors) if len(tensors) > 1 else tensors[0].reshape(-1).clone()
    values = (together.float() if together.dtype in (torch.float16, torch.bfloat16) else together).numpy()
    starts = np.cumsum([0, *sizes[:-1]])
    changed = np.ones(len(keys), np.bool_)
    if keys == before.keys and sizes == before.sizes and values.dtype == before.values.dtype:
        bits = f"i{values.dtype.itemsize}"
        changed = np.logical_or.reduceat(values.view(bits) != before.values.view(bits), starts)
        if not changed.any():
            return before
    wide = values.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.add.reduceat(np.square(wide), starts)).tolist()
        largest = np.maximum.reduceat(np.abs(wide), starts).tolist()
    states = dict(before.states) if not changed.all() else {}
    for k, start in zip(np.flatnonzero(changed).tolist(), starts[changed].tolist(), strict=True):
        if math.isfinite(norms[k]):
            sample = wide[start : start + sizes[k] : max(1, sizes[k] // _SAMPLES)][:_SAMPLES].copy()
            states[keys[k]] = State(norms[k], largest[k], sample, 0, _tolerance(tensors[k].dtype))
        else:
            states[keys[k]] = state_of(tensors[k])
    return _Small(keys, sizes, values, states)


def _tolerance(dtype: torch.dtype) -> float:
    return _TOLERANCE.get(dtype, 3e-2)


class Change(StrEnum):
    """What happened to a gradient between two moments."""

    NONE = "none"
    CLEARED = "cleared"  # None or all zero now
    SET = "set"  # was None or all zero
    SCALED = "scaled"
    CLAMPED = "clamped"
    SHRUNK = "shrunk"  # elements got smaller, by factors that differ: rows clipped one by one
    OTHER = "other"


def compare(before: State | None, after: State | None) -> tuple[Change, float]:
    """What happened, and the factor of a scaling or the bound of a clamp (nan otherwise)."""
    if before is None or before.is_zero:
        if after is None or after.is_zero:
            return Change.NONE, 1.0
        return Change.SET, float("nan")
    if after is None or after.is_zero:
        return Change.CLEARED, float("nan")
    if before.norm == after.norm and before.largest == after.largest and _equal(before.sample, after.sample):
        return Change.NONE, 1.0
    if before.nonfinite or after.nonfinite or len(before.sample) != len(after.sample):
        same = before.nonfinite == after.nonfinite and np.array_equal(before.sample, after.sample, equal_nan=True)
        return (Change.NONE, 1.0) if same else (Change.OTHER, float("nan"))
    tolerance = max(before.tolerance, after.tolerance)
    factor = after.norm / before.norm
    for sign in (1.0, -1.0):
        scaled = sign * factor * before.sample
        close = np.abs(scaled - after.sample) <= tolerance * factor * (np.abs(before.sample) + 1e-3 * before.largest)
        if close.all() and abs(after.largest - factor * before.largest) <= tolerance * factor * before.largest:
            return Change.SCALED, sign * factor
    bound = after.largest
    if bound < before.largest and np.allclose(np.clip(before.sample, -bound, bound), after.sample, rtol=tolerance, atol=0):
        return Change.CLAMPED, bound
    return (Change.SHRUNK if _is_smaller(before, after, tolerance) else Change.OTHER), float("nan")


def _equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    # Nearly always they are, and numpy would take twenty times as long to say so.
    return a.tobytes() == b.tobytes() or np.array_equal(a, b, equal_nan=True)


def _is_smaller(before: State, after: State, tolerance: float) -> bool:
    """Every element kept its sign, and none grew; some got smaller without being cut off."""
    ratios = np.divide(after.sample, before.sample, out=np.where(after.sample == 0, 1.0, np.nan), where=before.sample != 0)
    smaller = (ratios > 0) & (ratios < 1 - tolerance)
    return bool((ratios >= 0).all() and (ratios <= 1 + tolerance).all() and smaller.any())
