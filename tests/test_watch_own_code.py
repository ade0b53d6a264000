"""Recorded norms are called those from before clipping only where nothing but a norm clip that was seen can have changed the gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

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
    assert [n for n in run.notes if "something other than a norm clip may have changed the gradients" in n]


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
