"""What recording adds to a step: the hook beside one reading of the gradients, the per-parameter `.item()` loop and W&B-like histograms.

One torch thread. The gradients are those of a GPT of about 10 and 100 million parameters; nothing is trained, so that the hook itself is seen
and not the noise of a step. One reading is that of a copy in one piece: to read every gradient where it lies takes longer. All ways take turns
in every round; times are medians of process time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from gradclip_cli.watch import watch
from gradclip_cli.watch.watcher import Watcher

SIZES = ((6, 320, 10_000), (12, 768, 16_000))
ROUNDS = 15


def parameters(layers: int, width: int, vocabulary: int) -> list[torch.nn.Parameter]:
    """The tensors of a GPT, with gradients."""
    shapes: list[tuple[int, ...]] = [(vocabulary, width), (512, width), (width,), (width,)]
    for _ in range(layers):
        shapes += [
            (3 * width, width),
            (3 * width,),
            (width, width),
            (width,),
            (4 * width, width),
            (4 * width,),
            (width, 4 * width),
            (width,),
        ]
        shapes += [(width,)] * 4
    out = []
    for shape in shapes:
        parameter = torch.nn.Parameter(torch.empty(shape))
        parameter.grad = torch.randn(shape)
        out.append(parameter)
    return out


class Nothing(torch.optim.Optimizer):
    """An optimizer whose step is free."""

    def __init__(self, params: list[torch.nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        pass


@contextmanager
def recorded() -> Iterator[Watcher]:
    with tempfile.TemporaryDirectory() as folder, watch(Path(folder, "run")) as watcher:
        yield watcher


def item_loop(params: list[torch.nn.Parameter]) -> float:
    return sum(p.grad.norm().item() ** 2 for p in params if p.grad is not None) ** 0.5


def histograms(params: list[torch.nn.Parameter]) -> None:
    for p in params:
        if p.grad is not None:
            flat = p.grad.detach().reshape(-1)
            flat = flat[torch.isfinite(flat)]
            torch.histc(flat, bins=64, min=flat.min().item(), max=flat.max().item()).tolist()


def cpu_s(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def measure(layers: int, width: int, vocabulary: int) -> None:
    params = parameters(layers, width, vocabulary)
    optimizer = Nothing(params)
    flat = torch.cat([p.grad.reshape(-1) for p in params if p.grad is not None])
    with recorded():
        # Past the first updates, which are read at every point, as exactly as `verify` does it.
        for _ in range(25):
            optimizer.step()
        ways: dict[str, Callable[[], object]] = {
            "one reading (torch.sum, flat)": flat.sum,
            "the same where they lie": lambda: [p.grad.sum() for p in params if p.grad is not None],
            "record": optimizer.step,
            "torch._foreach_norm": lambda: torch._foreach_norm([p.grad for p in params]),
            "norm().item() per parameter": lambda: item_loop(params),
            "histograms of 64 bins": lambda: histograms(params),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                times[name].append(cpu_s(way))
    floor = statistics.median(times["one reading (torch.sum, flat)"])
    print(f"{sum(p.numel() for p in params) / 1e6:.1f} M parameters in {len(params)} tensors, one thread")
    for name, taken in times.items():
        middle = statistics.median(taken)
        print(f"  {name:<30} {middle * 1000:8.2f} ms  {middle / floor:6.2f} x one reading")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for size in SIZES:
        measure(*size)


if __name__ == "__main__":
    main()
