"""Tables and records of a million rows: CSV against a plain read and pandas, JSON lines and trainer_state.json against json.

All figures come from interleaved rounds of one run; files are in the page cache. CPU is user and system time of all threads.
"""

from __future__ import annotations

import json
import mmap
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gradclip_cli.readers import csv, jsonlines, trainer_state
from gradclip_cli.readers.log import Reader, Wanted
from gradclip_cli.readers.open import open_source

N = 1_000_000
ROUNDS = 5
KEYS = ("step", "loss", "grad_norm", "lr", "epoch", "tokens_per_s")


def rows(n: int) -> list[tuple[int, float, float, float, float, float]]:
    rng = np.random.default_rng(0)
    loss = 2 + 8 * np.exp(-np.arange(n) / (n / 20)) + rng.normal(0, 0.02, n)
    norm = np.exp(rng.normal(-1, 0.15, n))
    lr = 3e-4 * (1 - np.arange(n) / n)
    epoch = np.round(np.arange(n) / (n / 3), 4)
    speed = np.round(rng.normal(1e5, 1e3, n), 1)
    return list(zip(range(n), loss.tolist(), norm.tolist(), lr.tolist(), epoch.tolist(), speed.tolist(), strict=True))


def write(folder: Path, n: int) -> None:
    table = rows(n)
    with (folder / "log.csv").open("w") as f:
        f.write(",".join(KEYS) + "\n")
        f.writelines(",".join(map(repr, row)) + "\n" for row in table)
    with (folder / "log.jsonl").open("w") as f:
        f.writelines(json.dumps(dict(zip(KEYS, row, strict=True))) + "\n" for row in table)
    history = [{"epoch": r[4], "grad_norm": r[2], "learning_rate": r[3], "loss": r[1], "step": r[0]} for r in table]
    state = {"best_metric": None, "global_step": n, "log_history": history, "logging_steps": 1, "max_steps": n}
    (folder / "trainer_state.json").write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")


def plain_read(path: Path) -> None:
    """Into new memory, as a process gets it; what a heap has kept from the last round would be filled in a fifth of the time."""
    with path.open("rb", buffering=0) as f, mmap.mmap(-1, path.stat().st_size) as memory:
        f.readinto(memory)


def pandas_read(path: Path) -> None:
    import pandas as pd

    pd.read_csv(path)


def json_each_line(path: Path) -> None:
    with path.open("rb") as f:
        for line in f:
            json.loads(line)


def json_whole(path: Path) -> None:
    json.loads(path.read_bytes())


def ours(reader: Reader) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        reader.read(open_source(path), Wanted())

    return read


def compare(path: Path, reader: Reader, peers: dict[str, Callable[[Path], None]], rounds: int) -> None:
    """Print wall and CPU time of each, and how many times ours each peer takes."""
    candidates = {"gradclip": ours(reader), "plain read": plain_read, **peers}
    wall: dict[str, list[float]] = {name: [] for name in candidates}
    cpu: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, read in candidates.items():
            start, start_cpu = time.perf_counter(), time.process_time()
            read(path)
            wall[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - start_cpu)
    print(f"{path.name}, {path.stat().st_size / 1e6:.0f} MB")
    base_wall, base_cpu = statistics.median(wall["gradclip"]), statistics.median(cpu["gradclip"])
    for name in candidates:
        w, c = statistics.median(wall[name]), statistics.median(cpu[name])
        print(f"  {name:16} wall {w * 1e3:7.0f} ms   cpu {c * 1e3:7.0f} ms   {w / base_wall:6.2f} x ours (cpu {c / base_cpu:.2f})")
    plain = statistics.median(wall["plain read"])
    print(f"  ours is {base_wall / plain:.1f} times a plain read")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, N)
        compare(folder / "log.csv", csv.READER, {"pandas": pandas_read}, ROUNDS)
        compare(folder / "log.jsonl", jsonlines.READER, {"json a line": json_each_line}, ROUNDS)
        compare(folder / "trainer_state.json", trainer_state.READER, {"json": json_whole}, ROUNDS)


if __name__ == "__main__":
    main()
