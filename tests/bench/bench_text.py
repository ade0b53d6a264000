"""Console logs of 1,000,000 steps: our reader beside one regular expression a line and a plain read of the same file."""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gradclip_cli.readers.log import Wanted
from gradclip_cli.readers.open import open_source
from gradclip_cli.readers.text import READERS

NUM_STEPS = 1_000_000


def megatron(i: int, r: random.Random) -> str:
    return (
        f" iteration {i:8d}/ 1000000 | consumed samples: {i * 1024:12d} | elapsed time per iteration (ms): {r.gauss(12000, 50):.1f} | "
        f"learning rate: {1e-4 * r.random():.3E} | global batch size:  1024 | lm loss: {2 + r.random():.6E} | loss scale: 1.0 | "
        f"grad norm: {r.lognormvariate(0, 0.5):.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def llm_c(i: int, r: random.Random) -> str:
    return f"s:{i} trl:{2 + r.random():.4f} lr:{1e-4 * r.random():.6f} norm:{r.lognormvariate(0, 0.5):.2f}\n"


def huggingface(i: int, r: random.Random) -> str:
    return f"{{'loss': {2 + r.random():.4f}, 'grad_norm': {r.lognormvariate(0, 0.5)!r}, 'learning_rate': {1e-4 * r.random()!r}, 'epoch': {i / 1e5:.2f}}}\n"


LOGS: dict[str, tuple[Callable[[int, random.Random], str], str]] = {
    "Megatron-LM": (megatron, r"iteration +(\d+)/.*? learning rate: (\S+) .*? lm loss: (\S+) .*? grad norm: (\S+)"),
    "llm.c": (llm_c, r"s:(\d+) trl:(\S+) lr:(\S+) norm:(\S+)"),
    "Trainer dicts": (huggingface, r"'loss': ([^,]+), 'grad_norm': ([^,]+), 'learning_rate': ([^,]+), 'epoch': ([^}]+)"),
}


def read_ours(path: Path) -> int:
    source = open_source(path)
    reader = next(r for r in READERS if r.claims(source))
    return max(len(c.values) for c in reader.read(source, Wanted()).columns.values())


def read_by_line(path: Path, pattern: str) -> int:
    search = re.compile(pattern).search
    with path.open() as f:
        return len([[float(x) for x in m.groups()] for line in f if (m := search(line))])


def cpu_s(function: Callable[[], int]) -> float:
    start = time.process_time()
    assert function() >= NUM_STEPS
    return time.process_time() - start


def main() -> None:
    """Print CPU seconds (the best of three interleaved rounds) and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (line, pattern) in LOGS.items():
            path = Path(folder, "train.log")
            random_numbers = random.Random(0)
            with path.open("w") as f:
                f.writelines(line(i, random_numbers) for i in range(NUM_STEPS))
            candidates: dict[str, Callable[[], int]] = {
                "ours": lambda p=path: read_ours(p),  # type: ignore[misc]
                "re": lambda p=path, r=pattern: read_by_line(p, r),  # type: ignore[misc]
                "read": lambda p=path: len(p.read_bytes()),  # type: ignore[misc]
            }
            best = dict.fromkeys(candidates, float("inf"))
            for _ in range(3):
                for key, function in candidates.items():
                    best[key] = min(best[key], cpu_s(function))
            print(
                f"{name:14s} {path.stat().st_size / 1e6:6.0f} MB  ours {best['ours']:5.2f} s  a regular expression a line {best['re']:5.2f} s "
                f"({best['re'] / best['ours']:.1f} times ours)  plain read {best['read']:5.2f} s (ours is {best['ours'] / best['read']:.1f} times it)",
                flush=True,
            )


if __name__ == "__main__":
    main()
