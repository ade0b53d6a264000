"""What a gradient was at one moment, exactly enough to tell later what became of it.

A gradient is too large to keep; its norm in float64, its extremes and a few hundred of its elements tell
a scaling from a clamp from anything else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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


def states_of(gradients: Sequence[torch.Tensor]) -> Iterator[State]:
    """The state of each. Small tensors of a CPU are read together: a call for each would take most of the time of a large model."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        small = {i: g.reshape(-1) for i, g in enumerate(gradients) if _is_small(g)}
        together = _small_states(list(small.values())) if small else []
    read = dict(zip(small, together, strict=True))
    return (read.get(i) or state_of(g) for i, g in enumerate(gradients))


def _is_small(g: torch.Tensor) -> bool:
    plain = type(g) is torch.Tensor and g.layout is torch.strided and g.device.type == "cpu"
    return plain and g.is_floating_point() and 0 < g.numel() <= _SMALL


def _small_states(flat: list[torch.Tensor]) -> list[State | None]:
    """The state of each of several one-dimensional tensors; None of one that is not finite."""
    values = torch.cat([g.double() for g in flat]).numpy()
    sizes = [len(g) for g in flat]
    starts = np.cumsum([0, *sizes[:-1]])
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.add.reduceat(np.square(values), starts)).tolist()
        largest = np.maximum.reduceat(np.abs(values), starts).tolist()
    return [
        State(norm, top, values[start : start + size : max(1, size // _SAMPLES)][:_SAMPLES].copy(), 0, _tolerance(g.dtype))
        if math.isfinite(norm)
        else None
        for g, start, size, norm, top in zip(flat, starts.tolist(), sizes, norms, largest, strict=True)
    ]


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
    smaller = (ratios > tolerance) & (ratios < 1 - tolerance)
    return bool((ratios >= 0).all() and (ratios <= 1 + tolerance).all() and smaller.any())
