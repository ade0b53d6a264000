"""What GC101 tells of the batch of an exploding step, where the recorder saw it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradclip_cli import analyze, read_run
from gradclip_cli.model.finding import Finding
from gradclip_cli.runfile import RunWriter

N, EXPLODES = 120, 80


def explosion(folder: Path, **columns: np.ndarray) -> Finding:
    """A run whose norm is 50 times the usual one at step 80, with batches of its own."""
    rng = np.random.default_rng(0)
    steps = np.arange(1, N + 1)
    norm = np.exp(0.05 * rng.standard_normal(N))
    norm[EXPLODES - 1] = 50.0
    loss = 3 - 0.005 * steps + 0.01 * rng.standard_normal(N)
    writer = RunWriter(folder / "run", {})
    writer.append(steps, {"loss": loss, "grad_norm": norm, **columns}, None)
    writer.close("finished")
    (finding,) = [f for f in analyze(read_run(folder / "run")).findings if f.rule == "GC101"]
    assert finding.first_step == EXPLODES
    return finding


def usual(value: float, at_explosion: float) -> np.ndarray:
    values = np.full(N, float(value))
    values[EXPLODES - 1] = at_explosion
    return values


def test_what_stood_out_is_told(tmp_path: Path) -> None:
    finding = explosion(
        tmp_path,
        seq_len=usual(512, 4096),
        ignored_fraction=usual(0.05, 0.97),
        batch_index=np.arange(N, dtype=np.float64),
        batch_size=usual(8, 8),
    )
    assert finding.message.endswith(
        "; its longest sequence was 4,096, the usual one 512; 97% of its labels were ignored, usually 5%"
        "; it is batch 79 of the data loader, counted from 0"
    )
    assert finding.evidence["longest_sequence"] == 4096
    assert finding.evidence["usual_sequence"] == 512
    assert finding.evidence["usual_ignored_fraction"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"seq_len": usual(512, 512), "ignored_fraction": usual(0.5, 0.6)},
        {"seq_len": usual(512, np.nan), "batch_index": np.full(N, np.nan)},
        {"seq_len": usual(np.nan, 4096)},
    ],
    ids=["nothing known", "nothing unusual", "unknown there", "unknown elsewhere"],
)
def test_what_did_not_is_not(tmp_path: Path, columns: dict[str, np.ndarray]) -> None:
    finding = explosion(tmp_path, **columns)
    assert "sequence" not in finding.message
    assert "labels" not in finding.message
    assert "batch" not in finding.message
