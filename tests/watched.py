"""Little training loops, right and wrong, run under the real watcher: what the tests of the GC4xx rules judge."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradclip_cli.model.recorded import Recorded
from gradclip_cli.model.run import Run

UPDATES = 12
MAX_NORM = 1.0


def watched(loop: Callable[[], None], *, exact: bool = True, max_updates: int | None = None) -> Run:
    """Run a loop in this process under watch, and read back what was recorded."""
    from gradclip_cli.readers import read
    from gradclip_cli.watch import StopTraining, Watcher

    with tempfile.TemporaryDirectory() as folder:
        with Watcher(Path(folder, "run"), exact=exact, max_updates=max_updates), contextlib.suppress(StopTraining):
            loop()
        (run,) = read(Path(folder, "run"))
    assert isinstance(run, Run)
    return run


def ranks(*loops: Callable[[], None]) -> Run:
    """Each loop as one rank of a run."""
    runs = [watched(loop) for loop in loops]
    parts = {
        r: replace(run.recorded.parts[0], rank=r, header={**run.recorded.parts[0].header, "world_size": len(runs)})
        for r, run in enumerate(runs)
        if run.recorded is not None
    }
    return replace(runs[0], recorded=Recorded(len(runs), parts))


class Task:
    """A model whose gradient norms lie well above 1, its optimizer, and a new loss whenever asked."""

    def __init__(self, optimizer: str = "SGD", **options: Any) -> None:
        import torch

        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), lr=1e-3, **options)

    def loss(self) -> Any:
        import torch

        x = torch.randn(16, 4)
        return (self.model(x) - 20 * x[:, :1]).square().mean()

    def updates(self) -> Iterator[int]:
        """One turn an update, gradients cleared before each."""
        for i in range(UPDATES):
            self.optimizer.zero_grad()
            yield i

    def clip(self, max_norm: float = MAX_NORM, parameters: Any = None) -> Any:
        import torch

        return torch.nn.utils.clip_grad_norm_(self.model.parameters() if parameters is None else parameters, max_norm)


def right() -> None:
    task = Task()
    for _ in task.updates():
        task.loss().backward()
        task.clip()
        task.optimizer.step()


def right_by_hand() -> None:
    task = Task()
    for _ in task.updates():
        task.loss().backward()
        gradients = [p.grad for p in task.model.parameters()]
        total = sum(g.square().sum() for g in gradients).sqrt()
        for g in gradients:
            g.mul_((30.0 / total).clamp(max=1.0))
        task.optimizer.step()


def right_accumulated() -> None:
    task = Task()
    for _ in task.updates():
        for _ in range(3):
            (task.loss() / 3).backward()
        task.clip()
        task.optimizer.step()


def scaled(*, unscale: bool, twice: bool = False) -> Callable[[], None]:
    def loop() -> None:
        import torch

        task = Task()
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for _ in task.updates():
            scaler.scale(task.loss()).backward()
            if twice:
                for p in task.model.parameters():
                    p.grad.div_(scaler.get_scale())
            elif unscale:
                scaler.unscale_(task.optimizer)
            task.clip()
            scaler.step(task.optimizer)
            scaler.update()

    return loop


def after_step() -> None:
    task = Task()
    for _ in task.updates():
        task.loss().backward()
        task.optimizer.step()
        task.clip()


def before_backward() -> None:
    task = Task()
    for _ in task.updates():
        task.clip()
        task.loss().backward()
        task.optimizer.step()


def per_microbatch() -> None:
    task = Task()
    for _ in task.updates():
        for _ in range(3):
            task.loss().backward()
            task.clip()
        task.optimizer.step()


def changed_behind() -> None:
    task = Task()
    for i in task.updates():
        task.loss().backward()
        task.clip()
        for p in task.model.parameters():
            p.grad /= 2 + i
        task.optimizer.step()


def partial() -> None:
    task = Task()
    for _ in task.updates():
        task.loss().backward()
        task.clip(parameters=task.model[0].parameters())
        task.optimizer.step()


def frozen_part() -> None:
    """What has no gradient need not be clipped."""
    task = Task()
    task.model[2].requires_grad_(False)
    for _ in task.updates():
        task.loss().backward()
        task.clip(parameters=task.model[0].parameters())
        task.optimizer.step()


def empty_list() -> None:
    task = Task()
    parameters = filter(lambda p: p.requires_grad, task.model.parameters())
    list(parameters)
    for _ in task.updates():
        task.loss().backward()
        task.clip(parameters=parameters)
        task.optimizer.step()


def on_copies() -> None:
    task = Task()
    for _ in task.updates():
        task.loss().backward()
        flat = [p.grad.clone() for p in task.model.parameters()]
        total = sum(g.square().sum() for g in flat).sqrt()
        if total > MAX_NORM:
            for g in flat:
                g.mul_(MAX_NORM / total)
        task.optimizer.step()


def separate() -> None:
    task = Task()
    for _ in task.updates():
        task.loss().backward()
        for p in task.model.parameters():
            task.clip(parameters=[p])
        task.optimizer.step()


def unclipped() -> None:
    task = Task()
    for _ in task.updates():
        task.loss().backward()
        task.optimizer.step()


def repeated() -> None:
    task = Task()
    for _ in task.updates():
        task.loss().backward()
        task.clip(parameters=[*task.model.parameters(), task.model[0].weight])
        task.optimizer.step()


def nonfinite(*, skip: bool) -> Callable[[], None]:
    def loop() -> None:
        task = Task()
        for i in task.updates():
            (task.loss() * (float("inf") if i == 5 else 1.0)).backward()
            norm = task.clip()
            if norm.isfinite() or not skip:
                task.optimizer.step()

    return loop


def bound(max_norm: float) -> Callable[[], None]:
    def loop() -> None:
        task = Task()
        for _ in task.updates():
            task.loss().backward()
            task.clip(max_norm)
            task.optimizer.step()

    return loop


def by_value() -> None:
    import torch

    task = Task()
    for _ in task.updates():
        task.loss().backward()
        torch.nn.utils.clip_grad_value_(task.model.parameters(), 0.5)
        task.optimizer.step()


def twice(first: float) -> Callable[[], None]:
    def loop() -> None:
        task = Task()
        for _ in task.updates():
            task.loss().backward()
            task.clip(first)
            task.clip()
            task.optimizer.step()

    return loop


def cleared() -> None:
    task = Task()
    for _ in range(UPDATES):
        task.loss().backward()
        task.clip()
        task.optimizer.zero_grad()
        task.optimizer.step()


def closure(*, inside: bool) -> Callable[[], None]:
    def loop() -> None:
        task = Task("LBFGS", max_iter=3)

        def evaluate() -> Any:
            task.optimizer.zero_grad()
            loss = task.loss()
            loss.backward()
            if inside:
                task.clip()
            return loss

        for _ in range(UPDATES):
            evaluate()
            task.clip()
            task.optimizer.step(evaluate)

    return loop


def cleared_late() -> None:
    """Clearing after the step is as good as before the backward."""
    task = Task()
    for _ in range(UPDATES):
        task.loss().backward()
        task.clip()
        task.optimizer.step()
        task.optimizer.zero_grad()
