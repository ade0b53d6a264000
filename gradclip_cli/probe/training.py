"""The training loop: clip once an update, on the gradients that the optimizer will use, and drop what is not finite."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.probe import Planted
from gradclip_cli.probe import batch as batches
from gradclip_cli.probe.conditions import Conditions
from gradclip_cli.probe.faults import KINDS, Kind
from gradclip_cli.probe.parallel import distributed, last_alone_is_shared, local, total, whole
from gradclip_cli.probe.subject import Subject, is_short_of_memory, told_as_theirs

_END = object()
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The learning rate rises over a tenth of the updates, at most so many.
_MAX_WARMUP = 20
# Plain SGD with momentum takes so many times the learning rate of AdamW.
_SGD_FACTOR = 50.0
MAX_DROPPED = 20
"""So many batches in a row whose gradient is not finite, and the model is given up."""


@dataclass(frozen=True, slots=True)
class Update:
    """An attempt at one optimizer update.

    Attributes:
        step: Its number, from 1; that of the update to come where the batch was dropped.
        loss, norm: Of the batch; the norm from before clipping.
        moved: L2 norm of the change of the parameters.
        dropped: The gradient was not finite, and no update was made of it.
        seconds: Without measuring.
    """

    step: int
    loss: float
    norm: float
    moved: float
    dropped: bool
    seconds: float


def prepared(subject: Subject, conditions: Conditions) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model where it is trained, and its optimizer.

    Raises:
        GradclipError: The device cannot hold the model, or the user's own optimizer cannot be used so.
    """
    with _told(subject, conditions, f"moving to {conditions.device}"):
        model = distributed(subject.model.to(conditions.device), conditions.parallel, conditions.device)
    model.train()
    if subject.optimizer is None:
        return model, _optimizer(model, conditions, subject.lr)
    own = {id(p) for group in subject.optimizer.param_groups for p in group["params"]}
    if not own & {id(p) for p in model.parameters()}:
        why = "fsdp2 replaces them by shards" if conditions.parallel == "fsdp2" else "it was made for another model"
        raise GradclipError(f"{subject.name}: its optimizer holds none of the model's parameters ({why})", hint="return no optimizer")
    return model, subject.optimizer


def train(
    subject: Subject, model: nn.Module, optimizer: torch.optim.Optimizer, conditions: Conditions, planted: Sequence[Planted]
) -> Iterator[Update]:
    """Train, and tell of each attempt as it is over.

    With a loss scaler a skipped update counts as one, as the scaler has it; without, the next batch is tried for the same update.

    Args:
        model, optimizer: As `prepared` gives them.

    Raises:
        GradclipError: The batches run out, the user's code raises, or a fault cannot be planted here.
    """
    device, how = conditions.device, conditions.parallel
    rates = [group["lr"] for group in optimizer.param_groups]
    # Threads of compiled code on a CPU add up in an order of their own each time; one thread gives the same run again.
    on_cpu = conditions.device.type == "cpu"
    called = cast(nn.Module, torch.compile(model, options={"cpp.threads": 1} if on_cpu else None)) if conditions.compile else model
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    scaler = torch.amp.GradScaler(device.type, enabled=conditions.dtype == "fp16")
    before = [local(p.detach()).clone() for p in parameters]
    waiting = list(planted)
    step, in_a_row = 1, 0
    while step <= conditions.steps and in_a_row < MAX_DROPPED:
        began = time.perf_counter()
        here = [p for p in waiting if p.step <= step]
        _set_rates(optimizer, rates, step, conditions.steps, here, own=subject.optimizer is not None)
        with _told(subject, conditions, f"making update {step}"):
            optimizer.zero_grad(set_to_none=True)
            loss = torch.zeros((), device=device)
            with _in_the_input(model, here):
                for micro in range(conditions.accumulate):
                    batch, factor = _spoiled(_next(subject, step), subject.model, here, conditions.seed + step)
                    with last_alone_is_shared(model, last=micro == conditions.accumulate - 1):
                        part = _loss(subject, called, batches.on_device(batch, device), conditions) * (factor / conditions.accumulate)
                        scaler.scale(_with_larger_gradient(part, here)).backward()
                    loss = loss + part.detach()
            scaler.unscale_(optimizer)
            norm = whole(nn.utils.clip_grad_norm_(parameters, conditions.max_norm))
            dropped = not math.isfinite(norm)
            if scaler.is_enabled():
                scaler.step(optimizer)
                scaler.update()
            elif not dropped:
                optimizer.step()
            value = float(loss)
            seconds = time.perf_counter() - began
            moved = 0.0 if dropped else _moved(parameters, before, how)
        yield Update(step, value, norm, moved, dropped, seconds)
        waiting = [p for p in waiting if p.last_step > step]
        in_a_row = in_a_row + 1 if dropped else 0
        step += scaler.is_enabled() or not dropped


def _optimizer(model: nn.Module, conditions: Conditions, lr: float) -> torch.optim.Optimizer:
    rate = conditions.lr or (lr * _SGD_FACTOR if conditions.optimizer == "sgd" else lr)
    trained = [p for p in model.parameters() if p.requires_grad]
    if conditions.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=rate, momentum=0.9)
    if conditions.optimizer == "adam":
        return torch.optim.Adam(trained, lr=rate, betas=(0.9, 0.95))
    return torch.optim.AdamW(trained, lr=rate, betas=(0.9, 0.95), weight_decay=0.1)


def _set_rates(
    optimizer: torch.optim.Optimizer, rates: Sequence[float], step: int, steps: int, here: Sequence[Planted], *, own: bool
) -> None:
    """A linear rise at the beginning, unless the optimizer is the user's own, and what a fault does to it."""
    factor = 1.0 if own else min(1.0, step / max(1, min(_MAX_WARMUP, steps // 10)))
    factor *= math.prod(p.size or 1.0 for p in here if KINDS[p.kind].times_lr)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor


def _next(subject: Subject, step: int) -> batches.Batch:
    with told_as_theirs(subject.name, f"giving a batch for update {step}"):
        batch = next(subject.batches, _END)
    if batch is _END:
        raise GradclipError(
            f"{subject.name}: gave no more batches at update {step}; expected enough for all updates",
            hint="--steps fewer, or return batches that can be gone through again (a list, a DataLoader)",
        )
    return batch


def _spoiled(batch: batches.Batch, model: nn.Module, here: Sequence[Planted], seed: int) -> tuple[batches.Batch, float]:
    """The batch as the faults leave it, and what the loss is multiplied by."""
    factor = 1.0
    for fault in here:
        kind = KINDS[fault.kind]
        if kind.spoil is not None:
            usual = batches.num_labels(batch)
            chance = torch.Generator().manual_seed(seed)
            batch = kind.spoil(batch, fault.size or 1.0, chance, _num_tokens(model))
            if kind.per_usual_label and usual:
                factor *= batches.num_labels(batch) / usual
        if kind.times_loss:
            factor *= fault.size or 1.0
        if kind.embedded is not None and _embedding(model) is None:
            batch = _with_number(batch, kind)
    return batch, factor


def _embedding(model: nn.Module) -> nn.Embedding | None:
    return next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)


def _num_tokens(model: nn.Module) -> int | None:
    embedding = _embedding(model)
    return None if embedding is None else embedding.num_embeddings


def _with_number(batch: batches.Batch, kind: Kind) -> batches.Batch:
    labels = batches.label_key(batch)
    for key, tensor in batches.tensors(batch).items():
        if key != labels and tensor.is_floating_point() and tensor.numel():
            spoiled = tensor.clone()
            spoiled.view(-1)[0] = kind.embedded or 0.0
            return batches.replaced(batch, {key: spoiled})
    raise GradclipError(f"{kind.name}: the batch holds no features and the model no embedding; expected one of them")


@contextmanager
def _in_the_input(model: nn.Module, here: Sequence[Planted]) -> Iterator[None]:
    """One channel of the embedding is not finite meanwhile. A hook would do it too, but not in a compiled model."""
    numbers = [number for p in here if (number := KINDS[p.kind].embedded) is not None]
    embedding = _embedding(model)
    if not numbers or embedding is None:
        yield
        return
    weight = local(embedding.weight.detach())
    kept = weight[:, 0].clone()
    weight[:, 0] = numbers[0]
    try:
        yield
    finally:
        weight[:, 0] = kept


def _with_larger_gradient(loss: torch.Tensor, here: Sequence[Planted]) -> torch.Tensor:
    """The same value with another gradient."""
    factor = math.prod(f for p in here if (f := KINDS[p.kind].times_gradient) is not None)
    return loss if factor == 1 else loss.detach() + (loss - loss.detach()) * factor


@contextmanager
def _told(subject: Subject, conditions: Conditions, doing: str) -> Iterator[None]:
    """As `told_as_theirs`; of a model of ours what can go wrong is the memory and the compiler, and anything else is a bug."""
    try:
        with told_as_theirs(subject.name, doing):
            yield
    except GradclipError as e:
        if e.__cause__ is None or subject.foreign or conditions.compile or is_short_of_memory(e.__cause__):
            raise
        raise e.__cause__ from None


def _loss(subject: Subject, model: nn.Module, batch: batches.Batch, conditions: Conditions) -> torch.Tensor:
    dtype = _DTYPES.get(conditions.dtype)
    with (
        _told(subject, conditions, "computing the loss"),
        nullcontext() if dtype is None else torch.autocast(conditions.device.type, dtype),
    ):
        return subject.loss(model, batch)


def _moved(parameters: Sequence[torch.Tensor], before: list[torch.Tensor], how: str) -> float:
    """How far the parameters went; `before` is brought up to date."""
    with torch.no_grad():
        now = [local(p.detach()) for p in parameters]
        norms = torch._foreach_norm(torch._foreach_sub(now, before))
        torch._foreach_copy_(before, now)
        return total(torch.stack([n.double() if n.device.type == "cpu" else n for n in norms]).square().sum(), how)
