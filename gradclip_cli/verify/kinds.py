"""B2xx: mixed dtypes and devices, sparse gradients, tied parameters."""

from __future__ import annotations

import math

import numpy as np
import torch

from gradclip_cli.clipping import reference
from gradclip_cli.verify.bench import Bench, allowed, as_float64, coefficient_of, expected_coefficients, grads_of, name_of, nearest
from gradclip_cli.verify.clip import ClipRaised
from gradclip_cli.verify.outcome import Outcome, Tally, Unjudged, number


def mixed_dtypes(bench: Bench) -> Outcome:
    """Gradients of several dtypes in one call share one coefficient."""
    dtypes = [d for d in bench.dtypes if bench.holds(d)]
    if len(dtypes) < 2:
        raise Unjudged("fewer than two dtypes to mix")
    parameters = [p for d in dtypes for p in bench.case(d, 2.0, False, 1.9).parameters]
    label = " + ".join(name_of(d) for d in dtypes)
    return _one_coefficient(bench, parameters, label, max(allowed(d) for d in dtypes))


def mixed_devices(bench: Bench) -> Outcome:
    """Gradients on the CPU and on the device share one coefficient."""
    if bench.device.type == "cpu":
        raise Unjudged("needs a device beside the CPU")
    dtype = bench.model_dtype
    on_device = bench.case(dtype, 2.0, False, 1.9).parameters
    on_cpu = [bench.parameter(p.grad.cpu() * 0.5) for p in bench.case(dtype, 2.0, False, 1.9).parameters if p.grad is not None]
    return _one_coefficient(bench, [*on_device, *on_cpu], f"{bench.device} + cpu, {name_of(dtype)}", allowed(dtype))


def _one_coefficient(bench: Bench, parameters: list[torch.nn.Parameter], label: str, tolerance: float) -> Outcome:
    before = grads_of(parameters)
    norm = reference.total_norm(before)
    tally = Tally("norm or coefficient of a mixed set", "norm and coefficient of a mixed set are right")
    tally.compare(f"{label}, norm", bench.clip(parameters), norm, tolerance)
    for b, p in zip(before, parameters, strict=True):
        assert p.grad is not None
        measured, _ = coefficient_of([b], [as_float64(p.grad)])
        where = f"{label}, a tensor in {name_of(p.grad.dtype)} on {p.grad.device.type}"
        tally.compare(where, measured, nearest(measured, expected_coefficients(norm, bench.max_norm)), tolerance)
    return tally.outcome()


def sparse_gradients(bench: Bench) -> Outcome:
    """A sparse gradient is clipped right, or refused before anything is changed; never passed over."""
    dtype = bench.model_dtype
    dense = bench.parameter(bench.plant(np.full((4, 3), 2 * bench.max_norm), dtype))
    embedding = torch.nn.Embedding(5, 3, sparse=True, device=bench.device, dtype=dtype)
    try:
        (embedding(torch.tensor([1, 3], device=bench.device)).sum() * bench.max_norm).backward()
    except (RuntimeError, NotImplementedError) as e:
        raise Unjudged(f"no sparse gradients on {bench.device}") from e
    assert dense.grad is not None
    before = as_float64(dense.grad)
    norm = math.hypot(reference.total_norm([before]), math.sqrt(6) * bench.max_norm)
    try:
        returned = bench.clip([dense, embedding.weight])
    except ClipRaised as e:
        changed = float(np.max(np.abs(as_float64(dense.grad) - before)))
        if changed:
            return Outcome(
                False, f"a sparse gradient is refused after the others were changed by up to {number(changed)} ({e})", {"change": changed}
            )
        return Outcome(True, f"a sparse gradient is refused ({type(e.__cause__).__name__}) before anything is changed", {"change": 0.0})
    evidence = {"returned": returned, "expected": norm}
    if abs(returned - norm) > allowed(dtype) * norm:
        return Outcome(
            False, f"with a sparse gradient the norm is {returned:.6g}, expected {norm:.6g}: it was passed over in silence", evidence
        )
    return Outcome(True, f"a sparse gradient counts in the norm: {returned:.6g}", evidence)


def tied_parameters(bench: Bench) -> Outcome:
    """A weight that two layers share counts once."""
    dtype = bench.model_dtype
    rng = np.random.default_rng(3)
    first = torch.nn.Linear(6, 6, bias=False, device=bench.device, dtype=dtype)
    second = torch.nn.Linear(6, 6, bias=False, device=bench.device, dtype=dtype)
    second.weight = first.weight
    model = torch.nn.Sequential(first, torch.nn.Tanh(), second)
    (model(bench.plant(rng.standard_normal((16, 6)), dtype)).square().sum()).backward()
    first.weight.grad = first.weight.grad if first.weight.grad is None else first.weight.grad * 3 * bench.max_norm
    before = grads_of([first.weight])
    norm = reference.total_norm(before)
    bound = norm / 3
    twice = torch.nn.utils.clip_grad_norm_([first.weight, second.weight], math.inf)
    tally = Tally("the norm of a model with a tied weight")
    tally.compare(f"{name_of(dtype)}, model.parameters()", bench.clip(model.parameters(), bound), norm, allowed(dtype))
    right = reference.total_norm(reference.clipped(before, bound))
    tally.compare("after clipping to a third", reference.total_norm(grads_of([first.weight])), right, allowed(dtype))
    return tally.outcome(f"; a list that names the weight twice counts it twice ({float(twice) / norm:.3f} x the norm)")
