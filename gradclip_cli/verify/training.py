"""B7xx: a tiny model, a planted bad batch, with and without clipping."""

from __future__ import annotations

import math

import numpy as np
import torch

from gradclip_cli.clipping import reference
from gradclip_cli.verify.bench import Bench, allowed, as_float64, grads_of, name_of
from gradclip_cli.verify.outcome import Outcome, Unjudged, number

_STEPS, _BAD_STEP = 40, 25
# Targets this many times too large, in one batch.
_SPOILED = 300.0
_ROWS = 32
# The first gradient, in units of the bound: the usual ones lie below it and clipping is a safety net.
_USUAL = 0.8
_LR = 0.05


def bad_batch(bench: Bench) -> Outcome:
    """The update of a bad batch is bounded with clipping and not without."""
    dtype = bench.model_dtype
    if not bench.holds(dtype) or dtype == torch.float16:
        raise Unjudged(f"a small training in {name_of(dtype)} at max_norm {bench.max_norm:g} means nothing")
    with_clip, after_with = _train(bench, dtype, clip=True)
    without, after_without = _train(bench, dtype, clip=False)
    # Plain SGD: the update is lr x the clipped gradient, and what rounds is the parameter it is added to.
    bound = _LR * (1 + 10 * allowed(dtype) + torch.finfo(dtype).eps / _LR)
    evidence = {
        "largest_update_with_clipping": max(with_clip),
        "largest_update_without_clipping": max(without),
        "update_bound": _LR,
        "final_loss_with_clipping": after_with,
        "final_loss_without_clipping": after_without,
    }
    if max(with_clip) > bound:
        return Outcome(
            False,
            f"with clipping the largest update is {number(max(with_clip))}, lr x max_norm is {_LR:g}: the bad batch went through",
            evidence,
        )
    if not max(without) > 10 * _LR:
        return Outcome(False, f"without clipping the bad batch moved the model by {number(max(without))} only: it proves nothing", evidence)
    return Outcome(
        True,
        f"a batch with targets {_SPOILED:g} x too large moves the model by {number(max(with_clip))} with clipping (lr x max_norm is "
        f"{_LR:g}) and by {number(max(without))} without; {_STEPS - 1 - _BAD_STEP} steps later the loss is {number(after_with)} and "
        f"{number(after_without)} x the first",
        evidence,
    )


def _train(bench: Bench, dtype: torch.dtype, *, clip: bool) -> tuple[list[float], float]:
    """The norm of each update, and the last loss relative to the first."""
    rng = np.random.default_rng(17)
    model = torch.nn.Sequential(torch.nn.Linear(5, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.from_numpy(rng.standard_normal(p.shape) / 3))
    model.to(bench.device, dtype)
    weights = rng.standard_normal((5, 1))
    parameters = list(model.parameters())
    factor = 0.0
    updates, losses = [], []
    optimizer: torch.optim.Optimizer | None = None
    for step in range(_STEPS):
        x = rng.standard_normal((_ROWS, 5))
        y = np.tanh(x @ weights) * (_SPOILED if step == _BAD_STEP else 1.0)
        loss = model(bench.plant(x, dtype)).sub(bench.plant(y, dtype)).square().mean()
        losses.append(float(loss.detach()))
        if optimizer is None:
            loss.backward(retain_graph=True)
            # In these units the loss and the step are the same whatever the bound is.
            factor = _USUAL * bench.max_norm / reference.total_norm(grads_of(parameters))
            optimizer = torch.optim.SGD(parameters, lr=_LR / bench.max_norm)
        optimizer.zero_grad(set_to_none=True)
        (loss * factor).backward()
        before = [as_float64(p) for p in parameters]
        if clip:
            bench.clip(parameters)
        optimizer.step()
        updates.append(reference.total_norm([as_float64(p) - b for p, b in zip(parameters, before, strict=True)]))
    return updates, (losses[-1] / losses[0] if math.isfinite(losses[-1]) else math.inf)
