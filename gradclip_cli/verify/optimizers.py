"""B5xx: what optimizers do to a clipped gradient. The bound is on the gradient, not on the movement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from gradclip_cli.clipping import reference
from gradclip_cli.verify.bench import Bench, Float64, allowed, as_float64, name_of
from gradclip_cli.verify.outcome import Outcome, Unjudged, number

_SHAPES = ((8, 6), (6, 8), (10, 10))
# Norms of the gradient in units of the bound; the exploding one is the last but one.
_RATIOS = (1.5, 2.0, 1.7, 2.2, 100.0, 1.8)
_BAD = 4
_LR = 0.01
_MOMENTUM = 0.9
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8

_DEFAULT = "default"

Make = Callable[..., torch.optim.Optimizer]
Expected = Callable[[Sequence[Sequence[Float64]]], list[float]]


def sgd(bench: Bench) -> Outcome:
    """Plain SGD moves by lr x the clipped norm: here the bound is one on the movement too."""
    return _compare(bench, f"SGD, lr {_LR:g}", lambda ps, **o: torch.optim.SGD(ps, lr=_LR, **o), _sgd(0.0))


def momentum(bench: Bench) -> Outcome:
    """Momentum adds up clipped gradients: the movement exceeds lr x max_norm."""
    return _compare(
        bench,
        f"SGD with momentum {_MOMENTUM:g}",
        lambda ps, **o: torch.optim.SGD(ps, lr=_LR, momentum=_MOMENTUM, **o),
        _sgd(_MOMENTUM),
    )


def adamw(bench: Bench) -> Outcome:
    """AdamW divides by the gradients' own size: clipping changes the movement little, and differently."""
    return _compare(
        bench,
        "AdamW",
        lambda ps, **o: torch.optim.AdamW(ps, lr=_LR, betas=(_BETA1, _BETA2), eps=_EPS, weight_decay=0.0, **o),
        _adam,
    )


def adafactor(bench: Bench) -> Outcome:
    """Adafactor clips its own update: of the gradient's size little is left."""
    make = getattr(torch.optim, "Adafactor", None)
    if make is None:
        raise Unjudged(f"torch {torch.__version__} has no Adafactor")
    return _compare(bench, "Adafactor", lambda ps, **o: make(ps, lr=_LR, weight_decay=0.0, **o), None)


def muon(bench: Bench) -> Outcome:
    """Muon orthogonalises its update: the gradient's size drops out."""
    make = getattr(torch.optim, "Muon", None)
    if make is None:
        raise Unjudged(f"torch {torch.__version__} has no Muon")
    return _compare(bench, "Muon", lambda ps, **o: make(ps, lr=_LR, weight_decay=0.0, **o), None)


def _compare(bench: Bench, what: str, make: Make, expected: Expected | None) -> Outcome:
    """Updates with and without clipping, of every variant, beside the formula, or beside the default where there is none."""
    dtype = bench.model_dtype
    if not bench.holds(dtype):
        raise Unjudged(f"{name_of(dtype)} cannot hold gradients around {bench.max_norm:g}")
    gradients = _gradients(bench, dtype)
    # An update is the difference of parameters, and second moments take roots of rounded squares.
    tolerance = max(1e-4, 10 * allowed(dtype))
    default = [_movements(bench, make, {}, gradients, dtype, clip=c) for c in (True, False)]
    right = [expected([reference.clipped(g, bench.max_norm) for g in gradients]), expected(gradients)] if expected else default
    evidence = {
        "update_norm_with_clipping": default[0][_BAD],
        "update_norm_without_clipping": default[1][_BAD],
        "gradient_norm_per_max_norm": _RATIOS[_BAD],
    }
    agree = []
    note = ""
    for variant, options in _variants(bench, make, dtype):
        clipped, plain = (_movements(bench, make, options, gradients, dtype, clip=c) for c in (True, False))
        if wrong := _first_wrong(plain, right[1], tolerance):
            said = (
                f"{what}, {variant}, in {name_of(dtype)} on {bench.device}: update {wrong[0]} has norm {wrong[1]:.4g} where {wrong[2]:.4g} "
            )
            note = f"{said}is right, without clipping as well: a fault of this optimizer here, not of clipping"
            if variant == _DEFAULT:
                raise Unjudged(note)
        elif wrong := _first_wrong(clipped, right[0], tolerance):
            kind = "the formula gives" if expected else "the default gives"
            said = f"{what}, {variant}: update {wrong[0]} of a clipped gradient has norm {wrong[1]:.6g}; {kind} {wrong[2]:.6g}"
            return Outcome(False, said, evidence)
        else:
            agree.append(variant)
    times = default[1][_BAD] / default[0][_BAD] if default[0][_BAD] else math.inf
    source = "" if expected else "; no formula to compare with, only the variants"
    return Outcome(
        True,
        f"{what}: a gradient of {_RATIOS[_BAD]:g} x max_norm moves the parameters by {number(default[0][_BAD])} with clipping and by "
        f"{number(default[1][_BAD])} without ({times:.3g} x); {', '.join(agree)}{' agree' if len(agree) > 1 else ''}{source}",
        evidence,
        note,
    )


def _first_wrong(norms: list[float], right: list[float], tolerance: float) -> tuple[int, float, float] | None:
    """The first update, counted from 1, whose norm is not the right one, with both."""
    pairs = enumerate(zip(norms, right, strict=True), start=1)
    return next(((step, norm, r) for step, (norm, r) in pairs if not abs(norm - r) <= tolerance * r), None)


def _gradients(bench: Bench, dtype: torch.dtype) -> list[list[Float64]]:
    """One list a step, of norms `_RATIOS` x max_norm, as the dtype holds them; a common direction and some noise."""
    rng = np.random.default_rng(11)
    common = [rng.standard_normal(s) for s in _SHAPES]
    steps = []
    for ratio in _RATIOS:
        drawn = [c + 0.5 * rng.standard_normal(c.shape) for c in common]
        scale = ratio * bench.max_norm / reference.total_norm(drawn)
        steps.append([as_float64(bench.plant(d * scale, dtype)) for d in drawn])
    return steps


def _variants(bench: Bench, make: Make, dtype: torch.dtype) -> Iterator[tuple[str, dict[str, Any]]]:
    """The implementations this optimizer has on this device."""
    yield _DEFAULT, {}
    for name, options in (("for-loop", {"foreach": False}), ("foreach", {"foreach": True}), ("fused", {"fused": True})):
        try:
            p = bench.parameter(bench.plant(np.ones((2, 2)), dtype))
            p.data = p.data.clone()
            make([p], **options).step()
        except (TypeError, RuntimeError):
            continue
        yield name, options


def _movements(
    bench: Bench, make: Make, options: dict[str, Any], gradients: list[list[Float64]], dtype: torch.dtype, *, clip: bool
) -> list[float]:
    """The norm of each update of parameters that begin at 0."""
    parameters = [torch.nn.Parameter(torch.zeros(s, dtype=dtype, device=bench.device)) for s in _SHAPES]
    optimizer = make(parameters, **options)
    norms = []
    for step in gradients:
        before = [as_float64(p) for p in parameters]
        for p, g in zip(parameters, step, strict=True):
            p.grad = bench.plant(g, dtype)
        if clip:
            bench.clip(parameters)
        optimizer.step()
        norms.append(reference.total_norm([as_float64(p) - b for p, b in zip(parameters, before, strict=True)]))
    return norms


def _sgd(mu: float) -> Expected:
    def norms(steps: Sequence[Sequence[Float64]]) -> list[float]:
        buffers = [np.zeros_like(g) for g in steps[0]]
        out = []
        for grads in steps:
            buffers = [mu * b + g for b, g in zip(buffers, grads, strict=True)]
            out.append(_LR * reference.total_norm(buffers))
        return out

    return norms


def _adam(steps: Sequence[Sequence[Float64]]) -> list[float]:
    """Kingma and Ba, "Adam", 2015, algorithm 1."""
    first = [np.zeros_like(g) for g in steps[0]]
    second = [np.zeros_like(g) for g in steps[0]]
    out = []
    for t, grads in enumerate(steps, start=1):
        first = [_BETA1 * m + (1 - _BETA1) * g for m, g in zip(first, grads, strict=True)]
        second = [_BETA2 * v + (1 - _BETA2) * g * g for v, g in zip(second, grads, strict=True)]
        updates = [_LR * (m / (1 - _BETA1**t)) / (np.sqrt(v / (1 - _BETA2**t)) + _EPS) for m, v in zip(first, second, strict=True)]
        out.append(reference.total_norm(updates))
    return out
