"""Recorded norms are called those from before clipping only where nothing but a norm clip that was seen can have changed the gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.utils.checkpoint

from gradclip_cli.analysis import analyze
from gradclip_cli.model.run import GRAD_NORM, NormStage, Run
from tests.watched import Task, watched

BOUND = 25.0


def norm_of(task: Task) -> float:
    """As the training of this file makes it, in float64."""
    return math.sqrt(sum(p.grad.double().square().sum().item() for p in task.model.parameters()))


def nothing(task: Task) -> None:
    pass


def logged(task: Task) -> None:
    assert float(torch.stack([p.grad.norm() for p in task.model.parameters()]).norm()) > 0


def clipped(task: Task) -> None:
    torch.nn.utils.clip_grad_norm_(task.model.parameters(), BOUND)


def averaged_then_clipped(task: Task) -> None:
    for p in task.model.parameters():
        p.grad.div_(2)
    torch.nn.utils.clip_grad_norm_(task.model.parameters(), BOUND)


def by_hand(task: Task) -> None:
    norm = math.sqrt(sum(p.grad.norm().item() ** 2 for p in task.model.parameters()))
    for p in task.model.parameters():
        p.grad.mul_(min(1.0, BOUND / norm))


def by_hand_through_data(task: Task) -> None:
    norm = math.sqrt(sum(p.grad.data.norm().item() ** 2 for p in task.model.parameters()))
    if norm > BOUND:
        for p in task.model.parameters():
            p.grad.data.mul_(BOUND / norm)


def replaced(task: Task) -> None:
    for p in task.model.parameters():
        p.grad = p.grad.clamp(-1, 1)


def clipped_by_value(task: Task) -> None:
    torch.nn.utils.clip_grad_value_(task.model.parameters(), 0.5)


def trained(change: Callable[[Task], None], *, accumulated: int = 1, cleared_by_hand: bool = False) -> tuple[Run, list[float], list[float]]:
    """The run, and the norms of each update as the backward left them and as the optimizer used them."""
    left: list[float] = []
    used: list[float] = []

    def loop() -> None:
        task = Task()
        for i in range(60):
            if cleared_by_hand:
                for p in task.model.parameters():
                    p.grad = None
            else:
                task.optimizer.zero_grad()
            for _ in range(accumulated):
                # Large ones come when gradients are not read any more.
                (task.loss() * (0.01 if i < 40 else 1.0) / accumulated).backward()
            left.append(norm_of(task))
            change(task)
            used.append(norm_of(task))
            task.optimizer.step()

    return watched(loop, exact=False), left, used


@pytest.mark.parametrize("change", [nothing, logged, clipped])
@pytest.mark.parametrize("loop", [{}, {"accumulated": 3}, {"cleared_by_hand": True}], ids=["plain", "accumulated", "cleared-by-hand"])
def test_norms_from_before_clipping_are_called_so(change: Callable[[Task], None], loop: dict[str, int]) -> None:
    run, left, _ = trained(change, **loop)
    assert run.norm_stage is NormStage.PRE_CLIP
    assert max(left) > BOUND
    np.testing.assert_allclose(run.series[GRAD_NORM].values, left, rtol=1e-5)


def test_what_comes_before_a_clip_belongs_to_the_gradient() -> None:
    run, left, _ = trained(averaged_then_clipped)
    assert run.norm_stage is NormStage.PRE_CLIP
    np.testing.assert_allclose(run.series[GRAD_NORM].values, np.array(left) / 2, rtol=1e-5)


@pytest.mark.parametrize("change", [by_hand, by_hand_through_data, replaced, clipped_by_value])
def test_norms_that_something_else_has_changed_are_not(change: Callable[[Task], None]) -> None:
    run, left, used = trained(change)
    assert run.norm_stage is not NormStage.PRE_CLIP
    assert max(used) < max(left)
    np.testing.assert_allclose(run.series[GRAD_NORM].values, used, rtol=1e-5)
    assert [n for n in run.notes if "may have changed the gradients before the step" in n]


def twice(task: Task) -> None:
    torch.nn.utils.clip_grad_norm_(task.model.parameters(), BOUND)
    torch.nn.utils.clip_grad_norm_(task.model.parameters(), BOUND / 5)


def each_layer_for_itself(task: Task) -> None:
    for parameter in task.model.parameters():
        torch.nn.utils.clip_grad_norm_(parameter, 2.0)


@pytest.mark.parametrize("change", [twice, each_layer_for_itself])
def test_the_coefficient_of_several_clips_is_that_of_all_together(change: Callable[[Task], None]) -> None:
    run, left, used = trained(change)
    (part,) = run.recorded.parts.values() if run.recorded else ()
    np.testing.assert_allclose(part.columns["grad_norm"], left, rtol=1e-5)
    np.testing.assert_allclose(part.columns["clip_coef"], np.array(used) / left, rtol=1e-5)
    assert part.columns["clip_coef"].min() < 0.2


def test_a_clip_of_one_optimizer_says_nothing_of_another() -> None:
    left, used = [], []

    def loop() -> None:
        torch.manual_seed(0)
        first, second = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
        one, other = torch.optim.SGD(first.parameters(), 1e-3), torch.optim.SGD(second.parameters(), 1e-3)
        for _ in range(30):
            x = torch.randn(8, 4)
            one.zero_grad()
            other.zero_grad()
            (10 * (second(first(x) * x) - x.sum(1, keepdim=True)).square().mean()).backward()
            left.append(float(second.weight.grad.norm()))
            for p in second.parameters():
                p.grad.div_(4)
            torch.nn.utils.clip_grad_norm_(first.parameters(), 1.0)
            one.step()
            one.zero_grad()
            used.append(float(second.weight.grad.norm()))
            other.step()

    run = watched(loop, exact=False)
    (part,) = run.recorded.parts.values() if run.recorded else ()
    of_other = part.columns["optimizer"] == 1
    assert of_other.sum() == 30
    assert (part.columns["has_grad_norm"] == ~of_other).all()
    assert (part.columns["has_grad_norm_used"] == 1).all()
    assert sum(used) < sum(left)


def quiet(task: Task, i: int) -> torch.Tensor:
    """A loss whose gradients are large only when they are not read any more."""
    return task.loss() * (0.01 if i < 40 else 1.0)


def in_backward() -> None:
    task = Task()
    each = {p: torch.optim.SGD([p], 1e-3) for p in task.model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        each[parameter].step()
        each[parameter].zero_grad()

    hooks = [p.register_post_accumulate_grad_hook(update) for p in each]
    for i in range(60):
        quiet(task, i).backward()
    # A circle through the engine is never collected, and tests that come later would find these optimizers.
    for hook in hooks:
        hook.remove()


def divided_by_the_optimizer() -> None:
    task = Task("AdamW", fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for i in range(60):
        task.optimizer.zero_grad()
        scaler.scale(quiet(task, i)).backward()
        scaler.step(task.optimizer)
        scaler.update()


def let_go_by_hand() -> None:
    task = Task()
    for i in range(60):
        quiet(task, i).backward()
        if i % 3 == 2:
            for p in task.model.parameters():
                p.grad = None
            continue
        task.optimizer.step()
        task.optimizer.zero_grad()


def two_that_share_a_backward() -> None:
    task, other = Task(), torch.nn.Linear(1, 1)
    second = torch.optim.SGD(other.parameters(), 1e-3)
    for i in range(60):
        (quiet(task, i) + other(torch.ones(1)).square().sum()).backward()
        for optimizer in (task.optimizer, second):
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def compared_and_left() -> None:
    task = Task()
    for i in range(60):
        task.optimizer.zero_grad()
        quiet(task, i).backward()
        if torch.nn.utils.get_total_norm([p.grad for p in task.model.parameters()]) > BOUND:
            task.model.train()
        task.optimizer.step()


def checkpointed_twice() -> None:
    task = Task()
    for i in range(60):
        task.optimizer.zero_grad()
        x = torch.randn(16, 4, requires_grad=True)
        h = [torch.utils.checkpoint.checkpoint(task.model, y, use_reentrant=True) for y in (x, 2 * x)]
        (0.01 * (h[0] - h[1] + i).square().mean()).backward()
        task.optimizer.step()


def logged_in_hooks() -> None:
    task = Task()
    seen: list[torch.Tensor] = []
    norms: list[float] = []

    def log(gradient: torch.Tensor) -> None:
        norms.append(float(gradient.norm()))

    for p in task.model.parameters():
        p.register_hook(seen.append)
        p.register_hook(log)
    for i in range(60):
        task.optimizer.zero_grad()
        quiet(task, i).backward()
        task.optimizer.step()
    assert len(seen) == len(norms) > 0


def clipped_behind_hooks() -> None:
    task = Task()
    for p in task.model.parameters():
        p.register_hook(lambda gradient: gradient.clamp(-1, 1))
    for i in range(60):
        task.optimizer.zero_grad()
        quiet(task, i).backward()
        torch.nn.utils.clip_grad_norm_(task.model.parameters(), BOUND)
        task.optimizer.step()


RIGHT = [
    logged_in_hooks,
    clipped_behind_hooks,
    in_backward,
    divided_by_the_optimizer,
    let_go_by_hand,
    two_that_share_a_backward,
    compared_and_left,
    checkpointed_twice,
]


@pytest.mark.parametrize("loop", RIGHT)
def test_no_loop_that_changes_nothing_is_said_to(loop: Callable[[], None]) -> None:
    run = watched(loop, exact=False)
    assert run.norm_stage is NormStage.PRE_CLIP
    assert not [n for n in run.notes if "may have changed" in n]


def by_hand_late_through_data(task: Task, i: int) -> None:
    # Gradients are not read any more, and a norm from numpy is seen by nobody.
    quiet(task, i).backward()
    norm = math.sqrt(sum(float((p.grad.numpy() ** 2).sum()) for p in task.model.parameters()))
    for p in task.model.parameters() if norm > BOUND else ():
        p.grad.data.mul_(BOUND / norm)


def by_the_norm_of_a_clip_without_bound(task: Task, i: int) -> None:
    quiet(task, i).backward()
    norm = torch.nn.utils.clip_grad_norm_(task.model.parameters(), math.inf).item()
    for p in task.model.parameters() if norm > BOUND else ():
        p.grad.mul_(BOUND / norm)


def of_no_backward(task: Task, i: int) -> None:
    parameters = list(task.model.parameters())
    gradients = torch.autograd.grad(quiet(task, i), parameters)
    norm = math.sqrt(sum(g.square().sum().item() for g in gradients))
    for p, g in zip(parameters, gradients, strict=True):
        p.grad = g * min(1.0, BOUND / norm)


def before_a_scaler_looks(task: Task, i: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaler.scale(quiet(task, i)).backward()
    for p in task.model.parameters() if i >= 40 else ():
        p.grad.mul_(0.01)
    scaler.unscale_(task.optimizer)


def bounded_by_zero(task: Task, i: int) -> None:
    quiet(task, i).backward()
    torch.nn.utils.clip_grad_norm_(task.model.parameters(), 0.0)


def in_tensor_hooks(task: Task, i: int) -> None:
    for p in task.model.parameters() if not i else ():
        p.register_hook(lambda g: g * min(1.0, BOUND / float(g.norm())))
    quiet(task, i).backward()


def by_a_function_of_torch_in_hooks(task: Task, i: int) -> None:
    for p in task.model.parameters() if not i else ():
        p.register_hook(partial(torch.clamp, min=-1, max=1))
    quiet(task, i).backward()


class Clamp:
    def __call__(self, parameter: torch.Tensor) -> None:
        parameter.grad.clamp_(-1, 1)


def in_hooks_behind_accumulation(task: Task, i: int) -> None:
    if not i:
        for p in task.model.parameters():
            p.register_post_accumulate_grad_hook(Clamp())
    quiet(task, i).backward()


WRONG = [
    in_tensor_hooks,
    by_a_function_of_torch_in_hooks,
    in_hooks_behind_accumulation,
    by_hand_late_through_data,
    by_the_norm_of_a_clip_without_bound,
    of_no_backward,
    before_a_scaler_looks,
    bounded_by_zero,
]


@pytest.mark.parametrize("take", WRONG)
def test_gradients_that_may_be_clipped_are_never_called_those_before(take: Callable[[Task, int], None]) -> None:
    def loop() -> None:
        task = Task()
        for i in range(60):
            task.optimizer.zero_grad()
            take(task, i)
            task.optimizer.step()

    run = watched(loop, exact=False)
    (part,) = run.recorded.parts.values() if run.recorded else ()
    assert run.norm_stage is not NormStage.PRE_CLIP
    assert (part.columns["has_grad_norm"][45:] == 0).any()


def out_of_sight(task: Task) -> None:
    norm = np.sqrt(sum(float(np.square(p.grad.numpy(), dtype=np.float64).sum()) for p in task.model.parameters()))
    if norm > BOUND:
        for p in task.model.parameters():
            p.grad.mul_(BOUND / norm)


def test_a_clip_by_hand_that_first_acts_where_gradients_are_not_read_is_not_called_none() -> None:
    reasons = {s.rule: s.reason for s in analyze(trained(out_of_sight)[0]).skipped}
    assert reasons["GC410"].startswith("something changed gradients in updates where a recording does not read them")
    assert [f for f in analyze(trained(nothing)[0]).findings if f.rule == "GC410"]
