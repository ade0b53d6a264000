"""B4xx: where in the loop clipping stands: accumulation, loss scaling, autocast, parameter groups."""

from __future__ import annotations

import math

import numpy as np
import torch

from gradclip_cli.clipping import reference
from gradclip_cli.verify.bench import Bench, Float64, allowed, coefficient_of, grads_of, name_of
from gradclip_cli.verify.outcome import Outcome, Tally, Unjudged, number

_BATCH, _MICRO = 32, 4
_LOSS_SCALE = 2.0**16
# Two ways of clipping that agree better than this could not be told apart.
_DIFFERS = 1e-3


class SmallModel:
    """Two layers and a batch on the device, with a loss whose gradient norm is `ratio` times the bound."""

    def __init__(self, bench: Bench, ratio: float = 3.7) -> None:
        rng = np.random.default_rng(5)
        self.dtype = bench.model_dtype
        self.module = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 4))
        with torch.no_grad():
            for p in self.module.parameters():
                p.copy_(torch.from_numpy(rng.standard_normal(p.shape) / 3))
        self.module.to(bench.device, self.dtype)
        self.x = bench.plant(rng.standard_normal((_BATCH, 6)), self.dtype)
        self.y = bench.plant(rng.standard_normal((_BATCH, 4)), self.dtype)
        self._factor = 1.0
        self.loss(slice(None)).backward()
        self._factor = ratio * bench.max_norm / reference.total_norm(self.grads())
        self.zero()

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return list(self.module.parameters())

    def loss(self, rows: slice) -> torch.Tensor:
        """The mean over these rows of the batch."""
        error: torch.Tensor = self.module(self.x[rows]).sub(self.y[rows])
        return error.square().mean() * self._factor

    def grads(self) -> list[Float64]:
        return grads_of(self.parameters)

    def zero(self) -> None:
        self.module.zero_grad(set_to_none=True)


def apart(a: list[Float64], b: list[Float64]) -> float:
    """The norm of the difference, relative to that of b."""
    return reference.total_norm([x - y for x, y in zip(a, b, strict=True)]) / reference.total_norm(b)


def accumulation(bench: Bench) -> Outcome:
    """Clipping once after all micro-batches is clipping the big batch; clipping each is not."""
    model = SmallModel(bench)
    model.loss(slice(None)).backward()
    big = reference.clipped(model.grads(), bench.max_norm)
    step = _BATCH // _MICRO
    rows = [slice(i, i + step) for i in range(0, _BATCH, step)]

    model.zero()
    for r in rows:
        (model.loss(r) / _MICRO).backward()
    bench.clip(model.parameters)
    after = model.grads()

    model.zero()
    for r in rows:
        (model.loss(r) / _MICRO).backward()
        bench.clip(model.parameters)
    each = apart(model.grads(), big)

    tally = Tally("the difference from the clipped big batch", "clipping once after all micro-batches is clipping the big batch")
    tally.compare(f"{_MICRO} micro-batches, {name_of(model.dtype)}", apart(after, big), 0.0, 3 * allowed(model.dtype))
    outcome = tally.outcome(f"; clipping after each would be {number(each)} off")
    if outcome.ok and each < _DIFFERS:
        return Outcome(False, f"clipping after each micro-batch is only {number(each)} off: the two cannot be told apart", outcome.evidence)
    return Outcome(outcome.ok, outcome.detail, {**outcome.evidence, "per_microbatch_difference": each})


def _scaler(bench: Bench) -> torch.amp.GradScaler:
    if bench.device.type not in ("cpu", "cuda"):
        raise Unjudged(f"no loss scaling on {bench.device.type}")
    if bench.model_dtype == torch.float16:
        raise Unjudged("GradScaler refuses float16 parameters; this check needs another dtype")
    return torch.amp.GradScaler(bench.device.type, init_scale=_LOSS_SCALE)


def amp_unscale_first(bench: Bench) -> Outcome:
    """Clipping after `unscale_` sees the true gradients; before it, gradients 65536 times too large."""
    model = SmallModel(bench)
    model.loss(slice(None)).backward()
    expected = reference.clipped(model.grads(), bench.max_norm)

    def scaled(unscale_first: bool) -> list[Float64]:
        model.zero()
        scaler = _scaler(bench)
        optimizer = torch.optim.SGD(model.parameters, lr=0.0)
        scaler.scale(model.loss(slice(None))).backward()
        if unscale_first:
            scaler.unscale_(optimizer)
        bench.clip(model.parameters)
        if not unscale_first:
            scaler.unscale_(optimizer)
        return model.grads()

    right, wrong = scaled(True), scaled(False)
    norm = reference.total_norm(wrong)
    tally = Tally("the difference from the gradient clipped without a scaler", "clipping after unscale_ is clipping without a scaler")
    tally.compare(f"loss scale {_LOSS_SCALE:g}, {name_of(model.dtype)}", apart(right, expected), 0.0, 3 * allowed(model.dtype))
    outcome = tally.outcome(f"; clipped before unscale_ a norm of {number(norm)} is left where {bench.max_norm:g} is right")
    if outcome.ok and apart(wrong, expected) < _DIFFERS:
        return Outcome(False, "clipping before unscale_ gives the same gradient: unscale_ does not unscale here", outcome.evidence)
    return Outcome(outcome.ok, outcome.detail, {**outcome.evidence, "norm_after_wrong_order": norm})


def scaler_skips_overflow(bench: Bench) -> Outcome:
    """After an overflow the scaler takes no step and halves its scale, also when the gradients were clipped in between."""
    model = SmallModel(bench)
    scaler = _scaler(bench)
    optimizer = torch.optim.SGD(model.parameters, lr=0.1)
    before = [p.detach().clone() for p in model.parameters]
    scaler.scale(model.loss(slice(None)) * math.inf).backward()
    scaler.unscale_(optimizer)
    bench.clip(model.parameters)
    scaler.step(optimizer)
    scaler.update()
    moved = sum(int((p != b).sum()) for p, b in zip(model.parameters, before, strict=True))
    scale = scaler.get_scale()
    evidence = {"num_changed": float(moved), "loss_scale_before": _LOSS_SCALE, "loss_scale_after": scale}
    if moved:
        return Outcome(False, f"an overflow was not skipped: the step changed {moved} parameter values", evidence)
    if not scale < _LOSS_SCALE:
        return Outcome(False, f"the step was skipped, but the scale stayed at {scale:g}", evidence)
    return Outcome(True, f"an overflow is skipped: no parameter changed, the scale went from {_LOSS_SCALE:g} to {scale:g}", evidence)


def autocast(bench: Bench) -> Outcome:
    """Under bf16 autocast the gradients of float32 parameters are float32, and clipping them is exact."""
    if torch.float32 not in bench.dtypes or not bench.holds(torch.float32):
        raise Unjudged("needs float32 parameters")
    model = SmallModel(bench)
    try:
        with torch.autocast(bench.device.type, dtype=torch.bfloat16):
            loss = model.loss(slice(None))
        loss.backward()
    except RuntimeError as e:
        raise Unjudged(f"no bfloat16 autocast on {bench.device.type}") from e
    dtypes = {p.grad.dtype for p in model.parameters if p.grad is not None}
    before = model.grads()
    norm = reference.total_norm(before)
    tally = Tally("norm or gradient under bf16 autocast", "norm and gradient under bf16 autocast are right")
    tally.compare("the norm", bench.clip(model.parameters), norm, allowed(torch.float32))
    tally.compare("the clipped gradient", apart(model.grads(), reference.clipped(before, bench.max_norm)), 0.0, allowed(torch.float32))
    outcome = tally.outcome(f"; the gradients are {', '.join(sorted(map(name_of, dtypes)))}")
    if dtypes != {torch.float32}:
        return Outcome(False, f"float32 parameters got gradients in {', '.join(map(name_of, dtypes))} under autocast", outcome.evidence)
    return outcome


def parameter_groups(bench: Bench) -> Outcome:
    """One call over all groups has one coefficient; a call a group has several, and turns the gradient."""
    model = SmallModel(bench)
    model.loss(slice(None)).backward()
    before = model.grads()
    bench.clip(model.parameters)
    together = model.grads()
    model.zero()
    model.loss(slice(None)).backward()
    groups = (model.parameters[:2], model.parameters[2:])
    for group in groups:
        bench.clip(group)
    separate = model.grads()
    coefficients = [coefficient_of(before[i : i + 2], separate[i : i + 2])[0] for i in (0, 2)]
    norm, cosine = reference.total_norm(separate), coefficient_of(before, separate)[1]
    tally = Tally("the difference from the gradient clipped as a whole", "one call over two groups is right")
    tally.compare(name_of(model.dtype), apart(together, reference.clipped(before, bench.max_norm)), 0.0, 3 * allowed(model.dtype))
    shown = " and ".join(number(c) for c in coefficients)
    outcome = tally.outcome(
        f"; clipped group by group the coefficients are {shown}, the norm {norm / bench.max_norm:.3g} x max_norm, the cosine {cosine:.4f}"
    )
    evidence = {**outcome.evidence, "separate_norm": norm, "separate_cosine": cosine}
    if outcome.ok and abs(coefficients[0] / coefficients[1] - 1) < _DIFFERS:
        return Outcome(False, f"clipped group by group the coefficients are {shown}: the two ways cannot be told apart", evidence)
    return Outcome(outcome.ok, outcome.detail, evidence)
