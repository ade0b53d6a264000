"""A small recorded run, written by the writer itself from known numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gradclip_cli.model.recorded import TensorInfo
from gradclip_cli.runfile import RunWriter
from tests import cases

TENSORS = (TensorInfo("embed.weight", (50, 8), "float32"), TensorInfo("head.bias", (50,), "bfloat16"))
HEADER = {"world_size": 1, "torch": "2.13.0", "device": "cpu", "max_norm": 1.0, "loss_reduction": "mean", "exact": False, "seed": None}
# A third and a quarter of the squared norm are exact in no float32, which is the point.
TENSOR_NORMS = np.stack([cases.NORM * np.sqrt(1 / 3), cases.NORM * np.sqrt(2 / 3)], axis=1).astype(np.float32)


def calls(u: int) -> list[dict[str, object]]:
    """The trace of one update of a plain loop that clips at 1.0."""
    at: dict[str, object] = {"u": u, "site": "train.py:9:main"}
    norm = float(cases.NORM[u])
    clip = {"how": "norm", "bound": 1.0, "p": 2.0, "returned": norm, "whole": False, "given": 2, "tensors": [0, 1], "repeated": []}
    clip |= {
        "empty": 0,
        "foreign": 0,
        "foreign_gradients": 0,
        "scaled": {},
        "in_backward": False,
        "in_step": False,
        "stack": ["train.py:9:main"],
    }
    return [
        {"k": "backward", "scale": 1.0, "in_step": False, **at},
        {"k": "clip", **clip, **at},
        *([{"k": "optimizer", "o": 0, "class": "SGD", "tensors": [0, 1], "sharded": [], "inside": {}, **at}] if u == 0 else []),
        {"k": "enter", "o": 0, "closure": False, "in_backward": False, **at},
        {"k": "use", "o": 0, "divided": None, "skipped": None, "evaluation": 0, **at},
        {"k": "exit", "o": 0, "wrapper": False, **at},
    ]


def columns(rows: slice) -> dict[str, np.ndarray]:
    n = len(cases.STEPS[rows])
    return {
        "loss": cases.LOSS[rows],
        "has_loss": np.ones(n),
        "grad_norm": cases.NORM[rows],
        "has_grad_norm": np.ones(n),
        "grad_norm_used": np.minimum(cases.NORM[rows], 1.0),
        "has_grad_norm_used": np.ones(n),
        "lr": cases.LR[rows],
        "max_norm": np.ones(n),
        "clip_coef": np.ones(n),
        "loss_scale": np.full(n, np.nan),
        "skipped": np.zeros(n),
        "num_micro_batches": np.ones(n),
        "step_s": np.full(n, 0.25),
        "optimizer": np.zeros(n),
    }


def write(directory: Path, *, flush: int = 20, rank: int = 0, world_size: int = 1, ended: str | None = "finished") -> Path:
    """The run of `cases`, flushed every few updates; `ended=None` leaves it as a killed process does."""
    writer = RunWriter(directory, HEADER | {"world_size": world_size}, rank=rank)
    writer.add_tensors(TENSORS)
    for at in range(0, cases.N, flush):
        rows = slice(at, at + flush)
        writer.append(cases.STEPS[rows], columns(rows), TENSOR_NORMS[rows])
        writer.append_events([e for u in range(at, min(at + flush, cases.N)) for e in calls(u)])
    if ended is not None:
        writer.close(ended)
    else:
        abandon(writer)
    return directory


def abandon(writer: RunWriter) -> None:
    """Let go of the files without a word, as `kill -9` would."""
    import os

    for opened in writer._fds.values():
        os.close(opened.fd)
    writer._fds.clear()
