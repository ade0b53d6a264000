"""B2xx: large tensors, half precision, gradients that are tiny, zero or not there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from gradclip_cli.clipping import reference
from gradclip_cli.verify.bench import Bench, allowed, as_float64, grads_of, name_of
from gradclip_cli.verify.outcome import Outcome, Tally, Unjudged, number

# A coefficient that is wrong by more than this changes the bound by more than anybody chooses it; float32 on the CPU reaches it
# between 10^7 elements (0.04 %) and 10^8 (1.1 %).
_LARGE_ALLOWED = 1e-3
_CHUNK = 1 << 18
# Not worth a number in a sentence.
_NEGLIGIBLE = 1e-9


def large_tensor(bench: Bench) -> Outcome:
    """The norm of one large tensor in full precision, and the bound it leaves."""
    wanted = [d for d in bench.dtypes if d in (torch.float32, torch.float64)]
    if not wanted:
        raise Unjudged("neither float32 nor float64 was asked for")
    return _large(bench, wanted, _LARGE_ALLOWED)


def large_half_tensor(bench: Bench) -> Outcome:
    """The same in half precision, whose rounding is allowed on top."""
    halves = _halves(bench)
    return _large(bench, halves, _LARGE_ALLOWED + max(allowed(d) for d in halves))


def _halves(bench: Bench) -> list[torch.dtype]:
    halves = [d for d in bench.dtypes if d in (torch.float16, torch.bfloat16)]
    if not halves:
        raise Unjudged("no half-precision dtype was asked for, or the device has none")
    return halves


def half_precision_norm(bench: Bench) -> Outcome:
    """A norm that is accumulated in half precision overflows, underflows or stops counting."""
    halves = _halves(bench)
    tally = Tally("the norm of half-precision gradients")
    # Squares beyond 65504; squares below 6e-8; a running sum that no longer feels its addends.
    for what, value, num in (("4096 x 30", 30.0, 1), ("4096 x 1e-4", 1e-4, 1), ("512 tensors of 4096 x 0.01", 0.01, 512)):
        for dtype in (torch.float32, *halves):
            parameters = [bench.parameter(bench.plant(np.full(4096, value), dtype)) for _ in range(num)]
            norm = reference.total_norm(grads_of(parameters))
            returned = bench.clip(parameters, 2 * norm)
            if dtype != torch.float32:
                tally.compare(f"{name_of(dtype)}, {what}", returned, norm, allowed(dtype))
            elif not abs(returned - norm) <= allowed(torch.bfloat16) * norm:
                raise Unjudged(f"the norm is as wrong in float32: {returned:.6g}, expected {norm:.6g} ({what})")
    return tally.outcome(_overflow(bench) if torch.float16 in halves else "")


def _overflow(bench: Bench) -> str:
    """What happens to finite float16 gradients whose norm float16 cannot hold."""
    parameter = bench.parameter(bench.plant(np.full(4096, 3000.0), torch.float16))
    returned = bench.clip([parameter])
    after = reference.total_norm(grads_of([parameter]))
    if math.isfinite(returned):
        return f"; a norm of 192000 in float16 is returned as {returned:g}"
    return f"; beyond 65504 it is {returned:g} in float16, and clipping leaves {'nothing' if after == 0 else number(after)} of the gradient"


def _large(bench: Bench, dtypes: list[torch.dtype], tolerance: float) -> Outcome:
    sizes = [10**k for k in range(5, 20) if 10**k < bench.elements] + [bench.elements]
    worst: tuple[float, str, float] | None = None
    evidence: dict[str, float] = {"allowed_relative_error": tolerance}
    said, left_out = [], []
    for dtype in dtypes:
        errors = []
        for size in sizes:
            if size * dtype.itemsize > _free_bytes(bench.device):
                left_out.append(f"{name_of(dtype)} at {_power(size)}")
                continue
            error, after = _large_error(bench, dtype, size, tolerance)
            evidence[f"relative_error_{name_of(dtype)}_{size}"] = error
            errors.append(error)
            if worst is None or not abs(error) <= abs(worst[0]):
                worst = (error, f"one {name_of(dtype)} tensor of {size:,} elements", after)
        # The sizes that there is no memory for are the last.
        shown = ", ".join(f"{_percent(e)} at {_power(n)}" for e, n in zip(errors, sizes, strict=False))
        said.append(f"{name_of(dtype)} {shown if any(abs(e) > _NEGLIGIBLE for e in errors) else 'nowhere'}")
    # What was asked for is the largest size; smaller ones are no answer.
    if worst is None or sum(where.endswith(f" at {_power(sizes[-1])}") for where in left_out) == len(dtypes):
        raise Unjudged(f"no memory for {bench.elements:,} elements on {bench.device}: --elements takes a smaller number")
    no_memory = f"; no memory for {', '.join(left_out)}" if left_out else ""
    error, where, after = worst
    if abs(error) <= tolerance:
        return Outcome(
            True,
            f"the norm of one tensor of so many elements is off by: {'; '.join(said)} ({_percent(tolerance, '')} allowed){no_memory}",
            evidence,
        )
    return Outcome(
        False,
        f"{where}: the norm is off by {_percent(error)} where {_percent(tolerance, '')} is allowed, so clipping leaves {after:.4g} x "
        f"max_norm (off by: {'; '.join(said)}){no_memory}",
        evidence,
    )


def _large_error(bench: Bench, dtype: torch.dtype, size: int, tolerance: float) -> tuple[float, float]:
    """The relative error of the norm of one tensor, and, where that is too large, the norm it is left with in units of the bound."""
    bound = 1.0  # the size is in question here, not the bound
    generator = torch.Generator(bench.device).manual_seed(9)
    grad = torch.empty(size, dtype=dtype, device=bench.device).normal_(0, 4 * bound / math.sqrt(size), generator=generator)
    norm = _norm(grad)
    error = bench.clip([bench.parameter(grad)], bound) / norm - 1
    return error, (1.0 if abs(error) <= tolerance else _norm(grad) / bound)


def _free_bytes(device: torch.device) -> float:
    """What can be allocated with some of it left to others; a process that takes more is ended by the system, not told."""
    if device.type == "cuda":
        return 0.9 * torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf
    return 0.8 * next((1024 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), math.inf)


def _norm(tensor: torch.Tensor) -> float:
    return reference.total_norm(as_float64(chunk) for chunk in tensor.split(_CHUNK))


def _percent(fraction: float, sign: str = "+") -> str:
    return f"{100 * fraction:{sign}.2g} %"


def _power(size: int) -> str:
    exponent = round(math.log10(size))
    return f"10^{exponent}" if 10**exponent == size else f"{size:,}"


def tiny_and_zero(bench: Bench) -> Outcome:
    """Gradients whose squares vanish, and gradients of zero: unchanged, and no nan."""
    tally = Tally("the relative change (or norm) of tiny and zero gradients", "tiny and zero gradients come back as they were")
    said = []
    for dtype in bench.dtypes:
        tiny = 4 * torch.finfo(dtype).tiny
        for what, value in (("zero", 0.0), (f"{tiny:.1g}", tiny)):
            parameters = [bench.parameter(bench.plant(np.full(64, value), dtype)) for _ in range(2)]
            before = grads_of(parameters)
            # Tiny beside this bound, in float16 too.
            returned = bench.clip(parameters, 1.0)
            change = max(float(np.max(np.abs(a - b))) for a, b in zip(grads_of(parameters), before, strict=True))
            tally.compare(f"{name_of(dtype)}, {what}", change / (value or 1.0), 0.0, 1e-6)
            norm = reference.total_norm(before)
            # A norm of 0 for one far below the bound does no harm; anything above the true one would.
            tally.compare(f"{name_of(dtype)}, {what}, returned norm", returned, min(returned, norm), allowed(dtype))
            if value and returned < norm / 2:
                said.append(name_of(dtype))
    zero = f"; their norm is returned as 0 in {', '.join(said)}, which is harmless so far below the bound" if said else ""
    return tally.outcome(zero)


def none_and_empty(bench: Bench) -> Outcome:
    """Parameters without a gradient are passed over; an empty list has norm 0."""
    tally = Tally("the norm with gradients missing")
    for dtype in bench.dtypes:
        if not bench.holds(dtype):
            continue
        case = bench.case(dtype, 2.0, False, 3.7)
        case.parameters[0].grad = None
        case.parameters[3].grad = None
        norm = reference.total_norm(grads_of(case.parameters))
        tally.compare(f"{name_of(dtype)}, two of {len(case.parameters)} gradients None", bench.clip(case.parameters), norm, allowed(dtype))
        for p in case.parameters:
            p.grad = None
        tally.compare(f"{name_of(dtype)}, every gradient None", bench.clip(case.parameters), 0.0, 1e-12)
    tally.compare("an empty list", bench.clip([]), 0.0, 1e-12)
    tally.compare("an exhausted iterator, which hides that nothing is clipped", bench.clip(iter(())), 0.0, 1e-12)
    return tally.outcome("; an empty list gives 0.0, not an error")
