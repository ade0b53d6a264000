"""What the findings of a watched loop say: numbers a reader would recompute, the line to change, advice that can be followed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradclip_cli.analysis import analyze, judge_loop
from gradclip_cli.model.check import Status, Verification
from gradclip_cli.model.finding import Finding
from gradclip_cli.model.run import MAX_NORM, Run
from gradclip_cli.readers import read
from tests import watched
from tests.conftest import make_run
from tests.watched import Task

NUM_UPDATES = 40
HERE = Path(__file__).name


def judged(loop: Callable[[], object]) -> Verification:
    return judge_loop(watched.watched(lambda: loop() and None), "loop")


def finding(told: Verification, rule: str) -> Finding:
    (found,) = [f for f in told.findings if f.rule == rule]
    return found


def line_of(loop: Callable[..., object], text: str) -> str:
    lines, first = inspect.getsourcelines(loop)
    (line,) = [first + i for i, line in enumerate(lines) if text in line]
    return f"{HERE}:{line}"


def reason(told: Verification, rule: str) -> str:
    (check,) = [c for c in told.checks if c.id == rule]
    assert check.status is Status.SKIP
    return check.detail


# --- the bound of each step


def annealed(start: float, end: float) -> Callable[[], list[tuple[float, float]]]:
    def loop() -> list[tuple[float, float]]:
        seen = []
        task = Task()
        for i in range(NUM_UPDATES):
            bound = start + (end - start) * i / (NUM_UPDATES - 1)
            task.optimizer.zero_grad()
            task.loss().backward()
            seen.append((float(task.clip(bound)), bound))
            task.optimizer.step()
        return seen

    return loop


def test_norms_are_held_against_the_bound_of_their_own_step() -> None:
    seen = annealed(60.0, 1.0)()
    fraction = np.mean([norm > bound for norm, bound in seen])
    assert 0.3 < fraction < 0.9 and all(norm > 1.0 for norm, _ in seen)
    told = judged(annealed(60.0, 1.0))
    assert not told.findings


def test_the_range_of_a_bound_that_every_norm_exceeds_is_told() -> None:
    seen = annealed(8.0, 2.0)()
    found = finding(judged(annealed(8.0, 2.0)), "GC201")
    ratio = np.median([norm / bound for norm, bound in seen])
    assert "100% of the norms exceed the max_norm of their step (2 to 8)" in found.message
    assert f"half of them are {ratio:.2g}× that or more" in found.message
    assert found.evidence["clipped_fraction"] == 1.0


def test_a_bound_that_passes_zero_is_told_at_its_lowest() -> None:
    told = judged(annealed(19.0, -20.0))
    message = finding(told, "GC414").message
    assert "max_norm -20 in update 40, which turns the gradients round: the optimizer used 20" in message
    assert "no bound in 21 of 40 updates" in message  # 0 is one of them


def test_a_clip_of_some_steps_is_not_always_clipping() -> None:
    def loop() -> None:
        task = Task()
        for i in range(NUM_UPDATES):
            task.optimizer.zero_grad()
            task.loss().backward()
            if i % 10 == 0:
                task.clip()
            task.optimizer.step()

    told = judged(loop)
    assert {f.rule for f in told.findings} == {"GC410"}
    assert "is skipped in 36 of 40 updates" in told.findings[0].message


@pytest.mark.parametrize("where", ["recorded", "logged"])
def test_a_run_has_the_bound_of_each_step(where: str, tmp_path: Path) -> None:
    if where == "recorded":
        run = watched.watched(lambda: annealed(60.0, 1.0)() and None)
        bounds = [bound for _, bound in annealed(60.0, 1.0)()]
    else:
        bounds = np.linspace(40, 1, NUM_UPDATES).tolist()
        rows = [f"{i},2.0,{20.0 + i % 3},{bound}" for i, bound in enumerate(bounds)]
        (tmp_path / "log.csv").write_text("\n".join(["step,loss,grad_norm,max_norm", *rows]), encoding="utf-8")
        (run,) = read(tmp_path / "log.csv")
        assert isinstance(run, Run)
    assert run.series[MAX_NORM].values.tolist() == pytest.approx(bounds)
    assert not {f.rule for f in analyze(run).findings} & {"GC201", "GC202"}


def test_a_largest_norm_that_is_logged_is_no_bound(tmp_path: Path) -> None:
    rows = [f"{i},2.0,1.{i % 7},9.{i % 5}" for i in range(NUM_UPDATES)]
    (tmp_path / "log.csv").write_text("\n".join(["step,loss,grad_norm,max_grad_norm", *rows]), encoding="utf-8")
    (run,) = read(tmp_path / "log.csv")
    assert isinstance(run, Run)
    assert MAX_NORM not in run.series and run.max_norm is None


def test_steps_without_a_bound_are_not_clipped_and_those_of_an_unknown_one_are_left_out() -> None:
    norms = np.full(100, 5.0)
    half = np.where(np.arange(100) < 50, 1.0, np.inf)
    assert "GC201" not in {f.rule for f in analyze(make_run(np.ones(100), norms, more={MAX_NORM: half})).findings}
    known = make_run(np.ones(100), norms, more={MAX_NORM: np.where(np.arange(100) < 50, 1.0, np.nan)})
    (found,) = [f for f in analyze(known).findings if f.rule == "GC201"]
    assert found.evidence["clipped_fraction"] == 1.0 and found.last_step == 49


# --- which clip


def test_each_clip_is_named_with_its_optimizer() -> None:
    def loop() -> None:
        first, second = Task(), Task()
        for _ in range(NUM_UPDATES):
            for task in (first, second):
                task.optimizer.zero_grad()
                task.loss().backward()
            first.clip(0.5)
            second.clip(0.25)
            first.optimizer.step()
            second.optimizer.step()

    told = [f.message for f in judged(loop).findings]
    assert len(told) == 2
    for message, name, bound in zip(told, ("1st", "2nd"), ("0.5", "0.25"), strict=True):
        assert message.startswith(f"SGD (the {name} optimizer): the clip at ")
        assert f"100% of the norms exceed max_norm {bound}" in message


def test_an_optimizer_is_called_as_the_script_calls_it() -> None:
    def loop() -> None:
        left, right = Task().model, Task().model
        opt_left = torch.optim.SGD(left.parameters(), lr=1e-3)
        opts = [torch.optim.Adam(right.parameters(), lr=1e-3)]
        for _ in range(4):
            (left(torch.ones(1, 4)) + right(torch.ones(1, 4))).square().sum().backward()
            for optimizer in (opt_left, *opts):
                optimizer.step()
                optimizer.zero_grad()

    labels = [f.message.split(":")[0] for f in judged(loop).findings if f.rule == "GC410"]
    assert labels == ["SGD (opt_left)", "Adam (opts[0])"]


@pytest.mark.parametrize(
    "loop, why",
    [
        (watched.scaled(unscale=False), "the clip holds max_norm against norms that still have the loss scale in them"),
        (watched.after_step, "no clip acts on the gradients that the optimizer uses"),
        (watched.on_copies, "no clip acts on the gradients that the optimizer uses"),
        (watched.unclipped, "no max_norm is known"),
    ],
    ids=["scaled", "after-step", "on-copies", "no-clip"],
)
def test_why_a_bound_is_not_judged(loop: Callable[[], None], why: str) -> None:
    told = judged(loop)
    assert {reason(told, "GC201"), reason(told, "GC202")} == {why}


# --- the line and the numbers


def scaled_in_a_hook() -> None:
    task = Task()

    def scale(*_: Any) -> None:
        for p in task.model.parameters():
            p.grad.mul_(0.5 + 0.1 * p.ndim)

    task.optimizer.register_step_pre_hook(scale)
    for _ in task.updates():
        task.loss().backward()
        task.clip()
        task.optimizer.step()


def test_what_a_hook_of_the_step_changes_is_told_at_its_line() -> None:
    message = finding(judged(scaled_in_a_hook), "GC405").message
    assert f"changed at tests/{line_of(scaled_in_a_hook, 'p.grad.mul_')} before the step: in update 1 the clip left 1" in message


def clamped_in_a_hook() -> None:
    task = Task()
    limit = 2.0
    for p in task.model.parameters():
        p.register_hook(lambda g: g.clamp(-limit, limit))
    for _ in task.updates():
        task.loss().backward()
        task.optimizer.step()


def test_a_hook_that_clamps_is_told_at_its_line() -> None:
    message = finding(judged(clamped_in_a_hook), "GC415").message
    assert f"at tests/{line_of(clamped_in_a_hook, 'register_hook')}" in message
    assert "clip_grad_norm_ before the step bounds it" in message


def divided_twice() -> None:
    watched.scaled(unscale=True, twice=True)()


def test_the_division_by_hand_is_told_at_its_line() -> None:
    message = finding(judged(divided_twice), "GC419").message
    lines, first = inspect.getsourcelines(watched.scaled)
    line = first + next(i for i, text in enumerate(lines) if "p.grad.div_" in text)
    assert f"once by hand at tests/watched.py:{line}" in message


def test_the_largest_norm_is_told_and_none_where_none_exceeds() -> None:
    def loop(bound: float) -> list[float]:
        task = Task()
        used = []
        for _ in task.updates():
            task.loss().backward()
            task.clip(bound)
            (task.loss() / 10).backward()
            used.append(float(torch.stack([p.grad.norm() for p in task.model.parameters()]).norm()))
            task.optimizer.step()
        return used

    largest = max(loop(1.0))
    assert f"used norms up to {largest:.3g} where max_norm is 1;" in finding(judged(lambda: loop(1.0)), "GC405").message
    assert "no norm exceeded max_norm 10,000 here" in finding(judged(lambda: loop(1e4)), "GC405").message


def test_the_micro_batch_that_keeps_least_is_told() -> None:
    def loop() -> list[float]:
        task = Task()
        kept = []
        for _ in task.updates():
            weight = 1.0
            for _ in range(3):
                task.loss().backward()
                weight *= min(1.0, 30.0 / float(task.clip(30.0)))
            kept.append(weight)
            task.optimizer.step()
        return kept

    kept = loop()
    found = finding(judged(loop), "GC404")
    assert found.evidence["first_weight_fraction"] == pytest.approx(min(kept), rel=1e-3)
    assert f"in update {int(np.argmin(kept)) + 1} the first micro-batch keeps" in found.message


def test_sparse_gradients_get_a_remedy_that_torch_takes() -> None:
    def loop() -> None:
        table, head = torch.nn.Embedding(20, 4, sparse=True), torch.nn.Linear(4, 1)
        opts = [torch.optim.SparseAdam(table.parameters()), torch.optim.Adam(head.parameters())]
        for i in range(6):
            head(table(torch.arange(i, i + 8))).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 0.1)
            for optimizer in opts:
                optimizer.step()
                optimizer.zero_grad()

    message = finding(judged(loop), "GC406").message
    assert "no clip covers its one tensor (" in message
    assert "clip_grad_norm_ takes no sparse gradients: make one norm of all by hand" in message
    assert not re.search(r"1 tensors|clip the parameters this optimizer owns", message)


def one_rank(*, clips: bool = True, bound: float = 1.0) -> Callable[[], None]:
    """A rank that takes another number than its own for the mean over ranks: all hold the same before the clip."""

    def loop() -> None:
        task = Task()
        for _ in task.updates():
            task.loss().backward()
            for p in task.model.parameters():
                p.grad.copy_(torch.full_like(p.grad, 3.0).cumsum(0))
            if clips:
                task.clip(bound)
            task.optimizer.step()

    return loop


@pytest.mark.parametrize(
    "other, fix",
    [
        (one_rank(clips=False), "rank 1 does not clip: run the same code on every rank"),
        (one_rank(bound=2.0), "max_norm is 1 on rank 0 and 2 on rank 1: give every rank the same"),
    ],
    ids=["no-clip", "bounds"],
)
def test_what_to_change_where_ranks_scale_one_gradient_differently(other: Callable[[], None], fix: str) -> None:
    told = judge_loop(watched.ranks(one_rank(), other), "loop")
    message = finding(told, "GC411").message
    assert "copy of the same gradients" in message
    assert message.endswith(fix)
