"""`gradclip replay` on a step of 100,000,000 elements: beside reading the file, and beside `torch.load` with torch's norms.

Wall-clock seconds, the best of interleaved rounds, and behind them what all threads took together: replay uses every core, as torch
does. The files are in the page cache ("warm"), or the kernel was asked to drop them ("cold"; what lies below may keep them all the same).
A process finds byte code of everything it imports, as installed packages have.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gradclip_cli.clipping.replay import Request, replay
from tests.replay_cases import write_raw

NUM_TENSORS, NUM_ELEMENTS = 145, 100_000_000
ROUNDS = 5
_SAFETENSORS = {"float32": ("F32", np.float32), "float16": ("F16", np.float16)}
_TORCH = "import torch; g = list(torch.load({!r}, weights_only=True).values()); print(float(torch.nn.utils.get_total_norm(g)))"


def write(folder: Path, dtype: str) -> tuple[Path, Path]:
    """The same gradients as safetensors and as torch saves them."""
    import json

    import torch

    short, kind = _SAFETENSORS[dtype]
    shape = (1 << 10, NUM_ELEMENTS // NUM_TENSORS >> 10)
    values = (np.random.default_rng(0).standard_normal((NUM_TENSORS, *shape), np.float32) * np.float32(1e-3)).astype(kind)
    size = values[0].nbytes
    header = {f"layer.{i}": {"dtype": short, "shape": shape, "data_offsets": [i * size, (i + 1) * size]} for i in range(NUM_TENSORS)}
    path = write_raw(folder / f"{dtype}.safetensors", json.dumps(header))
    with path.open("ab") as file:
        file.write(values.data)
    torch.save({f"layer.{i}": torch.from_numpy(v.copy()) for i, v in enumerate(values)}, folder / f"{dtype}.pt")
    return path, folder / f"{dtype}.pt"


def read(path: Path) -> None:
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def ours(path: Path) -> float:
    result, _ = replay([path], Request(max_norms=(1.0,)))
    assert result is not None
    return result.steps[0].total_norm


def with_torch(path: Path) -> float:
    import torch

    return float(torch.nn.utils.get_total_norm(list(torch.load(path, weights_only=True).values())))


def with_torch_in_float64(path: Path) -> float:
    import torch

    tensors = torch.load(path, weights_only=True).values()
    return float(torch.stack([torch.linalg.vector_norm(t, dtype=torch.float64) for t in tensors]).norm())


def with_torch_and_largest(path: Path) -> float:
    """What replay tells of a step: each tensor's norm, and whether something in it is not finite."""
    import torch

    tensors = torch.load(path, weights_only=True).values()
    norms = torch.stack([torch.linalg.vector_norm(t, dtype=torch.float32) for t in tensors])
    largest = max(float(torch.linalg.vector_norm(t, torch.inf)) for t in tensors)
    return float(norms.norm()) if math.isfinite(largest) else largest


def drop(path: Path) -> None:
    """Ask the kernel to forget the file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def process(byte_code: Path, *argv: str) -> None:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": str(byte_code)}
    subprocess.run([sys.executable, *argv], check=True, capture_output=True, env=env)


def best(candidates: dict[str, Callable[[], object]], before: Callable[[], None] = lambda: None) -> dict[str, tuple[float, float]]:
    """Least seconds of each: by the clock, and of the processors, children included."""
    times = dict.fromkeys(candidates, (math.inf, math.inf))
    for _ in range(ROUNDS):
        for name, function in candidates.items():
            before()
            start, busy = time.perf_counter(), sum(os.times()[:4])
            function()
            wall, cpu = times[name]
            times[name] = min(wall, time.perf_counter() - start), min(cpu, sum(os.times()[:4]) - busy)
    return times


def show(what: str, times: dict[str, tuple[float, float]]) -> None:
    print(what)
    for name, (wall, cpu) in times.items():
        print(f"  {name:46s} {wall:6.3f} s, {wall / times['ours'][0]:5.2f} times ours   processors {cpu:6.2f} s", flush=True)


def main() -> None:
    """Print seconds and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        byte_code = Path(folder) / "byte_code"
        for dtype in _SAFETENSORS:
            path, saved = write(Path(folder), dtype)
            exact = ours(path)
            error = f"{with_torch(saved) / exact - 1:+.1e}"
            candidates: dict[str, Callable[[], object]] = {
                "ours": lambda p=path: ours(p),  # type: ignore[misc]
                "plain read": lambda p=path: read(p),  # type: ignore[misc]
                f"torch.load + get_total_norm (off by {error})": lambda p=saved: with_torch(p),  # type: ignore[misc]
                "torch.load + L2 and inf norms": lambda p=saved: with_torch_and_largest(p),  # type: ignore[misc]
                "torch.load + float64 norms": lambda p=saved: with_torch_in_float64(p),  # type: ignore[misc]
            }
            size = f"{dtype} {path.stat().st_size / 1e6:.0f} MB"
            show(f"{size}, warm", best(candidates))
            show(f"{size}, cold", best({k: candidates[k] for k in list(candidates)[:2]}, lambda p=path: drop(p)))  # type: ignore[misc]
            processes: dict[str, Callable[[], object]] = {
                "ours": lambda p=path: process(byte_code, "-m", "gradclip_cli", "replay", str(p)),  # type: ignore[misc]
                "torch.load + get_total_norm": lambda p=saved: process(byte_code, "-c", _TORCH.format(str(p))),  # type: ignore[misc]
            }
            show(f"{size}, a process", best(processes))


if __name__ == "__main__":
    main()
