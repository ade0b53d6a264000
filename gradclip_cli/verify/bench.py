"""What a check works with: the device, the dtypes it has, planted gradients whose clipping is known, and the function under test."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gradclip_cli.clipping import reference
from gradclip_cli.verify.clip import Clip, ClipRaised
from gradclip_cli.verify.outcome import first_line
from gradclip_cli.verify.ranks import Ranks

Float64 = reference.Float64

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
NORM_TYPES = (1.0, 2.0, 3.0, math.inf)

# Scalars, single elements, a transposed one, several dimensions; with magnitudes far apart, so that proportions mean something.
_SHAPES: tuple[tuple[tuple[int, ...], float], ...] = (
    ((16, 8), 1.0),
    ((64,), 0.1),
    ((), 0.5),
    ((1,), 2.0),
    ((3, 5, 2, 2), 0.3),
    ((33, 7), 0.6),
)
_TRANSPOSED = len(_SHAPES) - 1

# Bounds at which planted gradients (0.01 to 100 times the bound) and their cubes stay normal numbers of the type they are summed in.
_BOUNDS = {
    torch.float64: (1e-60, 1e60),
    torch.float32: (1e-9, 1e9),
    torch.bfloat16: (1e-9, 1e9),
    torch.float16: (1e-2, 300.0),
}


def name_of(dtype: torch.dtype) -> str:
    """`float32`, as people write it."""
    return str(dtype).removeprefix("torch.")


def allowed(dtype: torch.dtype) -> float:
    """The relative error of a norm or a coefficient that rounding can cause.

    A half-precision norm is rounded per tensor and in total, and so is the coefficient (3 machine
    epsilons in all); float32 sums of a few hundred elements stay within 1e-5 on any device.
    """
    if dtype == torch.float64:
        return 1e-12
    return max(1e-5, 3 * torch.finfo(dtype).eps)


def as_float64(tensor: torch.Tensor) -> Float64:
    """The numbers of a tensor, exactly, on the CPU. Of a DTensor the whole one: a collective, all ranks must ask."""
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    # A copy in any case: clipping changes the tensor in place.
    result: Float64 = whole.detach().cpu().to(torch.float64, copy=True).numpy()
    return result


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a DTensor; any other tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def grads_of(parameters: Iterable[torch.Tensor]) -> list[Float64]:
    """The gradients there are."""
    return [as_float64(p.grad) for p in parameters if p.grad is not None]


def coefficient_of(before: Sequence[Float64], after: Sequence[Float64]) -> tuple[float, float]:
    """By what the gradients were scaled (least squares), and the cosine between before and after; nan where that means nothing."""
    a, b = (np.concatenate([x.reshape(-1) for x in xs]) if xs else np.empty(0) for xs in (after, before))
    top = max((float(np.abs(b).max(initial=0.0)), float(np.abs(a).max(initial=0.0))))
    if not math.isfinite(top) or top == 0:
        return math.nan, math.nan
    # Numbers as small as 1e-60 have squares that are none.
    a, b = a / top, b / top
    ab, aa, bb = float(a @ b), float(a @ a), float(b @ b)
    return (ab / bb if bb else math.nan), (ab / math.sqrt(aa * bb) if aa and bb else math.nan)


@dataclass(frozen=True, eq=False)
class Case:
    """Planted gradients in one dtype, for one norm type and one path.

    Attributes:
        parameters: Parameters whose `.grad` is planted.
        before: The gradients, float64.
        norm: Their total norm.
        foreach: Which path of the function is asked for.
    """

    label: str
    dtype: torch.dtype
    norm_type: float
    foreach: bool
    parameters: list[torch.nn.Parameter]
    before: list[Float64]
    norm: float


@dataclass(frozen=True, eq=False)
class Bench:
    """Where the checks of one process are made.

    Attributes:
        dtypes: Those asked for that the device has.
        max_norm: The bound.
        elements: The largest tensor to try.
        clip_function: What is tested.
        ranks: The process group, where there is one.
    """

    device: torch.device
    dtypes: tuple[torch.dtype, ...]
    max_norm: float
    elements: int
    clip_function: Clip
    ranks: Ranks | None = None

    @property
    def group(self) -> Ranks:
        """The process group; checks of several ranks run with one only."""
        assert self.ranks is not None
        return self.ranks

    @property
    def model_dtype(self) -> torch.dtype:
        """The dtype of small models: float32 where that was asked for."""
        return torch.float32 if torch.float32 in self.dtypes else self.dtypes[0]

    def holds(self, dtype: torch.dtype) -> bool:
        """Whether gradients around the bound are ordinary numbers of this dtype."""
        low, high = _BOUNDS[dtype]
        return low <= self.max_norm <= high

    def left_out(self) -> str:
        """For the end of a sentence: the dtypes that cannot hold gradients around the bound."""
        names = [name_of(d) for d in self.dtypes if not self.holds(d)]
        return f"; {', '.join(names)} left out: gradients around {self.max_norm:g} are beyond it" if names else ""

    def clip(
        self,
        parameters: Iterable[torch.Tensor],
        max_norm: float | None = None,
        norm_type: float = 2.0,
        *,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> float:
        """Clip with the function under test, at the bound unless another is given, and give what it returned.

        Raises:
            ClipRaised: Where it raised, or returned no number.
        """
        bound = self.max_norm if max_norm is None else max_norm
        try:
            returned = self.clip_function(parameters, bound, norm_type, error_if_nonfinite, foreach)
        except Exception as e:  # noqa: BLE001 - whatever the function under test raises is a finding about it
            raise ClipRaised(first_line(e)) from e
        return self.norm_from(returned)

    def norm_from(self, returned: Any) -> float:
        """The number that a clipping function returned."""
        if not isinstance(returned, torch.Tensor) or returned.numel() != 1:
            raise ClipRaised(f"it returned {type(returned).__name__}, not the norm")
        return float(as_float64(returned))

    def parameter(self, grad: torch.Tensor) -> torch.nn.Parameter:
        """A parameter with this gradient. It takes no memory of its own: all its elements are one."""
        parameter = torch.nn.Parameter(torch.zeros((), dtype=grad.dtype, device=grad.device).expand(grad.shape))
        parameter.grad = grad
        return parameter

    def plant(self, values: Float64, dtype: torch.dtype) -> torch.Tensor:
        """The values as a tensor of this device."""
        return torch.from_numpy(np.array(values)).to(dtype).to(self.device)

    def case(self, dtype: torch.dtype, norm_type: float, foreach: bool, ratio: float) -> Case:
        """Planted gradients whose norm of this type is `ratio` times the bound."""
        rng = np.random.default_rng(20130211)  # the same each time
        drawn = [np.asarray(rng.standard_normal(shape) * magnitude) for shape, magnitude in _SHAPES]
        scale = ratio * self.max_norm / reference.total_norm(drawn, norm_type)
        grads = [self.plant(values * scale, dtype) for values in drawn]
        grads[_TRANSPOSED] = grads[_TRANSPOSED].t()
        parameters = [self.parameter(g) for g in grads]
        before = grads_of(parameters)
        label = f"{name_of(dtype)}, p = {norm_type:g}, {'foreach' if foreach else 'single-tensor'}"
        return Case(label, dtype, norm_type, foreach, parameters, before, reference.total_norm(before, norm_type))

    def cases(self, ratio: float) -> Iterator[Case]:
        """Every dtype, norm type and path."""
        for dtype in self.dtypes:
            if self.holds(dtype):
                for norm_type in NORM_TYPES:
                    for foreach in self.paths:
                        yield self.case(dtype, norm_type, foreach, ratio)

    @property
    def paths(self) -> tuple[bool, ...]:
        """The paths PyTorch has for this device."""
        try:
            torch.nn.utils.clip_grad_norm_([self.parameter(torch.ones(1, device=self.device))], 1.0, foreach=True)
        except RuntimeError:
            return (False,)
        return (True, False)


def expected_coefficients(norm: float, max_norm: float) -> tuple[float, float]:
    """With the epsilon that PyTorch adds to the norm, and without: both are right."""
    return reference.coefficient(norm, max_norm), reference.coefficient(norm, max_norm, 0.0)


def nearest(value: float, candidates: Sequence[float]) -> float:
    """The candidate that is closest."""
    return min(candidates, key=lambda c: abs(c - value) if not math.isnan(value) else 0.0)
