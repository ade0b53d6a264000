"""The clipping contract in float64, from its definition.

For gradients g_1..g_m, norm type p and bound M: `G = ||concat(g_1..g_m)||_p`, `c = min(1, M / (G + eps))`, `g_i <- c * g_i`.
Expected values come from here and from nothing that is itself judged: numpy on the CPU, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

EPS = 1e-6
"""What PyTorch adds to the norm before it divides (`torch.nn.utils.clip_grads_with_norm_`)."""

# Elements that are widened to float64 at a time; memory stays bounded by a few times this (2 MiB each).
_BLOCK = 1 << 18

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


def total_norm(arrays: Iterable[Array], norm_type: float = 2.0) -> float:
    """The p-norm of all elements of all arrays, as of one vector.

    The arrays may be tensors or any parts of them, of any float dtype; they are widened block by block. Each block is scaled
    by a power of two before elements are raised to p, so that nothing over- or underflows on the way, and the sums of the
    blocks are added exactly; the relative error stays below 1e-13. No elements: 0.0. A nan among them: nan; otherwise an inf: inf.

    Args:
        norm_type: p > 0, also inf.

    Raises:
        ValueError: Where `norm_type` is not above 0.
    """
    if not norm_type > 0:
        raise ValueError(f"a norm of type {norm_type} is none: p must be above 0")
    largest = 0.0
    sums: list[tuple[float, int]] = []
    for block in _blocks(arrays):
        magnitudes = np.abs(block)
        top = float(magnitudes.max())
        largest = math.nan if math.isnan(top) or math.isnan(largest) else max(largest, top)
        if norm_type == math.inf or not math.isfinite(largest) or top == 0:
            continue
        exponent = math.frexp(top)[1]
        # The same exactly; ldexp is slow, and needed only where the factor is no float64.
        scaled = magnitudes * 2.0**-exponent if -1000 < exponent < 1000 else np.ldexp(magnitudes, -exponent)
        sums.append((float(np.dot(scaled, scaled) if norm_type == 2 else np.sum(scaled**norm_type)), exponent))
    if not sums or not math.isfinite(largest):
        return largest
    top_exponent = max(exponent for _, exponent in sums)
    total = math.fsum(value * 2.0 ** (norm_type * (exponent - top_exponent)) for value, exponent in sums)
    with np.errstate(over="ignore"):
        return float(np.ldexp(total ** (1 / norm_type), top_exponent))


def coefficient(total_norm: float, max_norm: float, eps: float = EPS) -> float:
    """`min(1, max_norm / (total_norm + eps))`: 0 for a norm of inf, nan for one of nan."""
    if total_norm + eps == 0:
        return 1.0
    ratio = max_norm / (total_norm + eps)
    return 1.0 if ratio > 1 else ratio


def clipped(arrays: Iterable[Array], max_norm: float, norm_type: float = 2.0, eps: float = EPS) -> list[Float64]:
    """The gradients as they should be after clipping: float64 arrays of the shapes given, `c * g_i`."""
    kept = [np.asarray(a) for a in arrays]
    c = coefficient(total_norm(kept, norm_type), max_norm, eps)
    with np.errstate(invalid="ignore"):
        return [a.astype(np.float64) * c for a in kept]


def _blocks(arrays: Iterable[Array]) -> Iterator[Float64]:
    for array in arrays:
        # In the order of memory: a transposed array is not copied.
        flat = np.ravel(np.asarray(array), order="K")
        for start in range(0, flat.size, _BLOCK):
            yield flat[start : start + _BLOCK].astype(np.float64, copy=False)
