"""Make the sample runs: short trainings by `gradclip probe`, all but one with a fault planted.

The twins of `bad-batch` are kept as `probe` recorded them, without what a report can do without; of the others what a user's own loop
would have logged: the loss of each update, the gradient norm from before clipping and the learning rate.

    python sample_runs/make.py [--out DIR] [NAME...]
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gradclip_cli import read_run
from gradclip_cli.__main__ import main as gradclip

HERE = Path(__file__).resolve().parent
Row = tuple[int, float, float, float]


def logged(recorded: Path) -> Iterator[Row]:
    """Step, loss, gradient norm, learning rate of every update; nan where there is none."""
    run = read_run(recorded)
    columns = [dict(zip(s.steps.tolist(), s.values.tolist(), strict=True)) for s in (run.loss, run.grad_norm, run.series["lr"]) if s]
    for step in sorted(set().union(*columns)):
        loss, norm, lr = (column.get(step, np.nan) for column in columns)
        yield step, loss, norm, lr


def as_events(recorded: Path, out: Path) -> None:
    """The event file that was written while it trained."""
    out.mkdir(exist_ok=True)
    (events,) = recorded.glob("events.out.tfevents.*")
    shutil.copyfile(events, out / "events.out.tfevents.1700000000.sample")


def as_csv(recorded: Path, out: Path) -> None:
    """A header and a line an update."""
    with out.open("w", newline="") as f:
        table = csv.writer(f)
        table.writerow(("step", "loss", "grad_norm", "lr"))
        table.writerows((step, f"{loss:.5f}", f"{norm:.5f}", f"{lr:.3e}") for step, loss, norm, lr in logged(recorded))


def as_json_lines(recorded: Path, out: Path) -> None:
    """A JSON object a line; NaN as Python's json writes it."""
    with out.open("w") as f:
        for step, loss, norm, lr in logged(recorded):
            f.write(json.dumps({"step": step, "train_loss": round(loss, 5), "grad_norm": round(norm, 5), "lr": round(lr, 8)}) + "\n")


def as_console(recorded: Path, out: Path) -> None:
    """What a training script prints."""
    with out.open("w") as f:
        f.write("device: cpu\nnumber of parameters: 0.07M\n")
        for step, loss, norm, lr in logged(recorded):
            f.write(f"step {step:5d} | loss: {loss:.6f} | lr {lr:.4e} | norm: {norm:.4f}\n")


def as_recorded(twins: Path, out: Path) -> None:
    """The run directories, but for the event files, which hold the same numbers again."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(twins, out, ignore=shutil.ignore_patterns("events.*"))


RUNS: dict[str, tuple[str, str, Callable[[Path, Path], None]]] = {
    "stable": ("stable", "--steps 500 --seed 1", as_events),
    "spike-recovered": (
        "spike-recovered.csv",
        "--steps 500 --seed 2 --optimizer sgd --max-norm none --inject foreign-tokens@240",
        as_csv,
    ),
    "diverged": ("diverged.jsonl", "--steps 500 --seed 3 --optimizer sgd --max-norm none --inject loss-times@200:300", as_json_lines),
    "nonfinite": (
        "nonfinite.log",
        "--steps 500 --seed 4 --inject nan-input@260 --inject nan-input@261 --inject nan-input@262",
        as_console,
    ),
    "bad-batch": ("bad-batch", "--steps 400 --optimizer sgd --inject long-sequence@240:32 --compare max_norm=none,suggested", as_recorded),
}


def main() -> None:
    """Train the named runs, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*RUNS, []], metavar="NAME")
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or RUNS:
        target, options, keep = RUNS[name]
        with tempfile.TemporaryDirectory() as folder:
            # The header tells the command line.
            sys.argv = ["gradclip", "probe", *options.split()]
            if code := gradclip([*sys.argv[1:], "-o", f"{folder}/run"]):
                sys.exit(code)
            keep(Path(folder, "run"), args.out / target)
        print(f"wrote {args.out / target}")


if __name__ == "__main__":
    main()
