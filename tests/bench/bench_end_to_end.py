"""Whole processes: start-up, and a million steps with five series read, judged and reported from each kind of file."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

N = 1_000_000
ROUNDS = 3


# A process begins with the peak of the one that forked it, and this one holds what it wrote.
_MEASURE = """
import os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(time.perf_counter() - start, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status))
process.returncode = 0
"""


def measure(argv: list[str], cwd: str) -> tuple[float, float, int]:
    """Wall seconds, peak resident MiB and exit status of one process."""
    done = subprocess.run([sys.executable, "-c", _MEASURE, *argv], cwd=cwd, capture_output=True, text=True, check=True)
    seconds, peak, code = done.stdout.split()
    return float(seconds), float(peak), int(code)


def series(n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    loss = 2 + 8 * np.exp(-np.arange(n) / (n / 20)) + rng.normal(0, 0.02, n)
    norm = np.exp(rng.normal(-1, 0.15, n))
    norm[n // 2] = 40.0
    loss[n // 2 + 1 : n // 2 + 9] += np.linspace(3, 0.5, 8)
    return {"loss": loss, "grad_norm": norm, "lr": np.full(n, 3e-4), "loss_scale": np.full(n, 65536.0), "tokens": np.arange(n) * 1024.0}


def write_csv(path: Path, data: dict[str, np.ndarray]) -> None:
    import pandas as pd

    pd.DataFrame(data).rename_axis("step").to_csv(path, float_format="%.8g")


def write_jsonl(path: Path, data: dict[str, np.ndarray]) -> None:
    with path.open("w") as f:
        for i, row in enumerate(zip(*data.values(), strict=True)):
            f.write(f'{{"step": {i}, ' + ", ".join(f'"{k}": {v:.8g}' for k, v in zip(data, row, strict=True)) + "}\n")


def write_text(path: Path, data: dict[str, np.ndarray]) -> None:
    with path.open("w") as f:
        for i, (loss, norm, lr, scale, tokens) in enumerate(zip(*data.values(), strict=True)):
            f.write(
                f" iteration {i:8}/ {N:8} | consumed samples: {tokens:12.0f} | elapsed time per iteration (ms): 1239.6 | learning rate: {lr:.3E} | "
                f"global batch size:  1024 | lm loss: {loss:.6E} | loss scale: {scale:.1f} | grad norm: {norm:.3f} | number of skipped iterations:   0 |\n"
            )


def write_tensorboard(path: Path, data: dict[str, np.ndarray]) -> None:
    from tests.bench.bench_tensorboard import write_scalars

    write_scalars(path, data)


WRITERS: dict[str, Callable[[Path, dict[str, np.ndarray]], None]] = {
    "run.csv": write_csv,
    "run.jsonl": write_jsonl,
    "run.log": write_text,
    "events.out.tfevents.1700000000.host.1.0": write_tensorboard,
}


def main() -> None:
    python = [sys.executable, "-m", "gradclip_cli"]
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder, "small.csv")
        write_csv(small, series(2000))
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "gradclip --help": [*python, "--help"],
            "gradclip analyze small.csv": [*python, "analyze", "small.csv"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(7):
            for name, argv in commands.items():
                times[name].append(measure(argv, folder)[0])
        for name, t in times.items():
            print(f"{name:30} {1000 * float(np.median(t)):7.0f} ms   (fastest {1000 * min(t):.0f})")
        data = series(N)
        for name, write in WRITERS.items():
            path = Path(folder, name)
            write(path, data)
            rows = [measure([*python, "analyze", name], folder) for _ in range(ROUNDS)]
            wall, rss = float(np.median([r[0] for r in rows])), max(r[1] for r in rows)
            size = path.stat().st_size / 2**20
            print(
                f"analyze {name[:22]:22} {size:6.0f} MiB {wall:7.2f} s   (fastest {min(r[0] for r in rows):.2f})   peak {rss:5.0f} MiB   exit {rows[0][2]}"
            )
            path.unlink()


if __name__ == "__main__":
    main()
