"""Train the sample runs: a small GPT on the text of the licence, with a fault planted in three of the four.

Every run is a real training on the CPU, seeded, some ten seconds long. What is logged is what a user's own loop would log: the loss
before the step and the gradient norm that `clip_grad_norm_` returns (the one from before clipping).

    python sample_runs/make.py [--out DIR] [--steps N] [NAME...]
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
CONTEXT, WIDTH, BATCH = 64, 64, 16


@dataclass(frozen=True)
class Row:
    """One optimizer update: the loss of its batch, the norm from before clipping, the learning rate."""

    step: int
    loss: float
    grad_norm: float
    lr: float


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, 4, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Two blocks over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places.weight[: x.shape[1]])))


def train(
    *,
    steps: int,
    seed: int,
    lr: float,
    max_norm: float,
    optimizer: str = "adamw",
    skip_nonfinite: bool = False,
    fault: Callable[[int, torch.Tensor], torch.Tensor],
) -> Iterator[Row]:
    """Train and yield a row an update.

    Args:
        max_norm: Clipping bound; inf only measures.
        skip_nonfinite: Leave out an update whose norm is not finite, as careful loops do.
        fault: Step and loss -> what the backward is taken of; where a bad batch is planted.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    text = torch.tensor(list((HERE.parent / "LICENSE").read_bytes()), dtype=torch.long).clamp_(max=127)
    model = GPT()
    if optimizer == "adamw":
        opt: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    else:
        opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for step in range(1, steps + 1):
        for group in opt.param_groups:
            group["lr"] = lr * min(1.0, step / 30) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1))
        window = text[starts + torch.arange(CONTEXT + 1)]
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        opt.zero_grad()
        fault(step, loss).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if not skip_nonfinite or norm.isfinite():
            opt.step()
        yield Row(step, loss.item(), norm.item(), opt.param_groups[0]["lr"])


def scaled(at: int, by: float, length: int = 1) -> Callable[[int, torch.Tensor], torch.Tensor]:
    """A fault: at `length` steps from `at` the gradient is multiplied, as by a sum where a mean was meant."""
    return lambda step, loss: loss * by if at <= step < at + length else loss


def write_tensorboard(rows: Iterator[Row], out: Path) -> None:
    """As `torch.utils.tensorboard` writes it."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(out)) as writer:
        for r in rows:
            writer.add_scalar("train/loss", r.loss, r.step)
            writer.add_scalar("train/grad_norm", r.grad_norm, r.step)
            writer.add_scalar("train/lr", r.lr, r.step)


def write_csv(rows: Iterator[Row], out: Path) -> None:
    """A header and a line an update."""
    with out.open("w", newline="") as f:
        table = csv.writer(f)
        table.writerow(("step", "loss", "grad_norm", "lr"))
        table.writerows((r.step, f"{r.loss:.5f}", f"{r.grad_norm:.5f}", f"{r.lr:.3e}") for r in rows)


def write_jsonl(rows: Iterator[Row], out: Path) -> None:
    """A JSON object a line; NaN as Python's json writes it."""
    with out.open("w") as f:
        for r in rows:
            f.write(
                json.dumps({"step": r.step, "train_loss": round(r.loss, 5), "grad_norm": round(r.grad_norm, 5), "lr": round(r.lr, 8)})
                + "\n"
            )


def write_console(rows: Iterator[Row], out: Path) -> None:
    """What a training script prints."""
    with out.open("w") as f:
        f.write("device: cpu\nnumber of parameters: 0.12M\n")
        for r in rows:
            f.write(f"step {r.step:5d} | loss: {r.loss:.6f} | lr {r.lr:.4e} | norm: {r.grad_norm:.4f}\n")


RUNS: dict[str, tuple[str, dict[str, object], Callable[[Iterator[Row], Path], None]]] = {
    "stable": ("stable", {"seed": 1, "lr": 1e-3, "max_norm": 1.0, "fault": lambda step, loss: loss}, write_tensorboard),
    "spike-recovered": ("spike-recovered.csv", {"seed": 2, "lr": 3e-3, "max_norm": math.inf, "fault": scaled(240, 100.0)}, write_csv),
    "diverged": (
        "diverged.jsonl",
        {"seed": 3, "lr": 0.1, "max_norm": math.inf, "optimizer": "sgd", "fault": scaled(200, 300.0)},
        write_jsonl,
    ),
    "nonfinite": (
        "nonfinite.log",
        {"seed": 4, "lr": 1e-3, "max_norm": 1.0, "skip_nonfinite": True, "fault": scaled(260, math.inf, length=3)},
        write_console,
    ),
}


def main() -> None:
    """Train the named runs, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*RUNS, []], metavar="NAME")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or RUNS:
        target, options, write = RUNS[name]
        for old in (args.out / target).glob("events.out.tfevents.*"):
            old.unlink()
        write(train(steps=args.steps, **options), args.out / target)  # type: ignore[arg-type]
        print(f"wrote {args.out / target}")


if __name__ == "__main__":
    main()
