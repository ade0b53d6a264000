"""What a gradient was at one moment, exactly enough to tell later what became of it.

A gradient is too large to keep; its norm in float64, its extremes and a few hundred of its elements tell
a scaling from a clamp from anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch

# Elements of one block: its float64 copy stays in the processor's cache.
_BLOCK = 1 << 18
_SAMPLES = 256
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
        tolerance = _TOLERANCE.get(values.dtype, 3e-2)
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
    if before.norm == after.norm and before.largest == after.largest and np.array_equal(before.sample, after.sample, equal_nan=True):
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


def _is_smaller(before: State, after: State, tolerance: float) -> bool:
    """Every element kept its sign, and none grew; some got smaller without being cut off."""
    ratios = np.divide(after.sample, before.sample, out=np.where(after.sample == 0, 1.0, np.nan), where=before.sample != 0)
    smaller = (ratios > tolerance) & (ratios < 1 - tolerance)
    return bool((ratios >= 0).all() and (ratios <= 1 + tolerance).all() and smaller.any())
