"""Judging a million steps, against pandas' rolling median of the two series (what a median baseline alone costs there)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pandas as pd

from gradclip_cli.detect import detect
from gradclip_cli.model.run import Series

N = 1_000_000
ROUNDS = 5


def run(events: int) -> tuple[Series, Series]:
    """A loss and a norm with so many explosions, each with a spike of fifteen rows behind it."""
    rng = np.random.default_rng(0)
    loss = (2 + 8 / np.sqrt(1 + np.arange(N) / 500)) * (1 + 0.01 * rng.normal(size=N))
    norm = np.exp(0.2 * rng.normal(size=N))
    at = np.linspace(1000, N - 200, events).astype(np.int64)
    norm[at] *= 50
    for k in range(15):
        loss[at + k] += 3 * np.exp(-k / 5)
    steps = np.arange(N, dtype=np.int64)
    return Series("loss", "loss", steps, loss), Series("grad_norm", "grad_norm", steps, norm)


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    runs = {events: run(events) for events in (0, 10, 10_000)}
    works: dict[str, Callable[[], object]] = {
        f"detect, {events:,} explosions and spikes": lambda pair=pair: detect(*pair, None) for events, pair in runs.items()
    }
    plain = [pd.Series(s.values) for s in runs[0]]
    works["pandas rolling(200).median(), both series"] = lambda: [s.rolling(200).median() for s in plain]
    works["  and of its residuals (median and MAD)"] = lambda: [(s - s.rolling(200).median()).abs().rolling(200).median() for s in plain]
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            taken[name].append(seconds(work))
    print(f"{N:,} steps with loss and norm, CPU ms, median of {ROUNDS} interleaved rounds")
    for name, times in taken.items():
        print(f"{name:45s} {1000 * statistics.median(times):7.0f}")
    for events, (loss, norm) in runs.items():
        found = detect(loss, norm, None)
        print(f"found of {events:,}: {len(found.explosions):,} explosions, {len(found.spikes):,} spikes")


if __name__ == "__main__":
    main()
