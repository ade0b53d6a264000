"""Clipping functions with one mistake each, for the battery to find. Module-level, so that ranks can import them."""

from __future__ import annotations

import math
import os
import time

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_


def _grads(parameters):
    return [p.grad for p in parameters if p.grad is not None]


def _norm(grads, norm_type):
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g, norm_type) for g in grads]).double(), norm_type)


def _scale(grads, coefficient):
    for g in grads:
        g.mul_(torch.as_tensor(coefficient).to(g.dtype))


def _checked(norm, error_if_nonfinite):
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError("the norm is not finite")
    return norm


def by_hand(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None, *, eps=1e-6, factor=1.0, least=False):
    """A right one, written out; the keywords make it wrong."""
    with torch.no_grad():
        grads = _grads(parameters)
        if not grads:
            return torch.tensor(0.0)
        norm = _checked(_norm(grads, norm_type), error_if_nonfinite)
        coefficient = factor * max_norm / (norm + eps)
        _scale(grads, coefficient if least else torch.clamp(coefficient, max=1.0))
        return norm


def without_epsilon(*args, **kwargs):
    return by_hand(*args, **kwargs, eps=0.0)


def twice_the_bound(*args, **kwargs):
    return by_hand(*args, **kwargs, factor=2.0)


def always_to_the_bound(*args, **kwargs):
    return by_hand(*args, **kwargs, least=True)


def ignores_one_tensor(parameters, *args, **kwargs):
    parameters = list(parameters)
    return clip_grad_norm_(parameters[1:] if len(parameters) > 1 else parameters, *args, **kwargs)


def squares_the_norm(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    with torch.no_grad():
        grads = _grads(parameters)
        norm = _checked(_norm(grads, norm_type) ** 2, error_if_nonfinite) if grads else torch.tensor(0.0)
        _scale(grads, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm


def sums_in_half_precision(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """The sum of squares is kept in the dtype of the gradients."""
    with torch.no_grad():
        parameters = list(parameters)
        grads = _grads(parameters)
        if norm_type != 2 or not grads or grads[0].dtype in (torch.float32, torch.float64):
            return clip_grad_norm_(list(parameters), max_norm, norm_type, error_if_nonfinite, foreach)
        total = torch.zeros((), dtype=grads[0].dtype)
        for g in grads:
            total = total + (g * g).sum()
        norm = _checked(total.sqrt(), error_if_nonfinite)
        _scale(grads, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm


def returns_the_norm_after(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    parameters = list(parameters)
    clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    return torch.nn.utils.get_total_norm(_grads(parameters), norm_type)


def each_tensor_alone(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    parameters = list(parameters)
    norm = torch.nn.utils.get_total_norm(_grads(parameters), norm_type, error_if_nonfinite)
    for p in parameters:
        clip_grad_norm_([p], max_norm, norm_type)
    return norm


def by_value(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    parameters = list(parameters)
    norm = torch.nn.utils.get_total_norm(_grads(parameters), norm_type, error_if_nonfinite)
    torch.nn.utils.clip_grad_value_(parameters, max_norm / 10 if norm > max_norm else math.inf)
    return norm


def on_a_copy(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    grads = [g.clone() for g in _grads(parameters)]
    norm = torch.nn.utils.get_total_norm(grads, norm_type, error_if_nonfinite)
    torch.nn.utils.clip_grads_with_norm_(grads, max_norm, norm)
    return norm


def always_two_norm(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    return clip_grad_norm_(parameters, max_norm, 2.0, error_if_nonfinite, foreach)


def foreach_path_halves(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    return clip_grad_norm_(parameters, max_norm / 2 if foreach else max_norm, norm_type, error_if_nonfinite, foreach)


def first_dtype_only(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Right while all gradients are of one dtype."""
    parameters = [p for p in parameters if p.grad is not None]
    same = [p for p in parameters if p.grad.dtype == parameters[0].grad.dtype]
    return clip_grad_norm_(same, max_norm, norm_type, error_if_nonfinite, foreach)


def wants_every_gradient(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    parameters = list(parameters)
    for p in parameters:
        p.grad.dtype  # noqa: B018 - fails where there is none
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def passes_sparse_over(parameters, *args, **kwargs):
    return clip_grad_norm_([p for p in parameters if p.grad is None or not p.grad.is_sparse], *args, **kwargs)


def hides_nonfinite(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    parameters = list(parameters)
    grads = _grads(parameters)
    if grads and not any(g.is_sparse for g in grads):
        _checked(torch.nn.utils.get_total_norm(grads, norm_type), error_if_nonfinite)
        for g in grads:
            torch.nan_to_num_(g, nan=0.0, posinf=0.0, neginf=0.0)
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def never_raises(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    return clip_grad_norm_(parameters, max_norm, norm_type, False, foreach)


def raises_too_late(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    return _checked(clip_grad_norm_(parameters, max_norm, norm_type, False, foreach), error_if_nonfinite)


def returns_nothing(parameters, *args, **kwargs):
    clip_grad_norm_(parameters, *args, **kwargs)


def raises(*args, **kwargs):
    raise ValueError("no clipping today")


def large_tensors_lose(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Right for small tensors."""
    parameters = list(parameters)
    if any(p.grad is not None and p.grad.numel() >= 100_000 for p in parameters):
        norm = torch.nn.utils.get_total_norm(_grads(parameters), norm_type) * 0.99
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return norm
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def _rank():
    return dist.get_rank() if dist.is_initialized() else 0


def last_rank_skips_or_local_shards(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    """Of plain gradients the last rank scales nothing; of sharded ones every rank takes the norm of what it holds."""
    parameters = [p for p in parameters if p.grad is not None]
    if not any(hasattr(p.grad, "to_local") for p in parameters):
        skips = dist.is_initialized() and _rank() == dist.get_world_size() - 1
        return clip_grad_norm_(parameters, math.inf if skips else max_norm, norm_type, error_if_nonfinite, foreach)
    shards = []
    for p in parameters:
        grad = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
        shards.append(torch.nn.Parameter(torch.empty_like(grad)))
        shards[-1].grad = grad
    return clip_grad_norm_(shards, max_norm, norm_type, error_if_nonfinite, foreach)


def second_rank_hangs(*args, **kwargs):
    if _rank() == 1:
        time.sleep(600)
    return clip_grad_norm_(*args, **kwargs)


def second_rank_dies(*args, **kwargs):
    if _rank() == 1:
        os._exit(7)
    return clip_grad_norm_(*args, **kwargs)


def second_rank_raises(*args, **kwargs):
    if _rank() == 1:
        raise ValueError("not on this rank")
    return clip_grad_norm_(*args, **kwargs)
