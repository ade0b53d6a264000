"""A max_norm that is logged and changes: each norm is held against that of its own step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gradclip_cli import read_run
from gradclip_cli.analysis import analyze
from gradclip_cli.report.json import render_json

N = 200


def logged(path: Path, norms: np.ndarray, bounds: np.ndarray) -> Path:
    losses = np.linspace(4.0, 2.0, N)
    rows = [f"{i + 1},{losses[i]:.6f},{norms[i]:.6f},{bounds[i]:.6f}" for i in range(N)]
    path.write_text("step,loss,grad_norm,max_norm\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("bounds", "share"),
    [
        (np.linspace(4.0, 0.1, N), None),
        (np.linspace(0.8, 0.1, N), 1.0),
        # Twenty of them are above every norm.
        (np.concatenate([np.full(18, 8.0), np.full(N - 18, 0.5)]), 0.91),
    ],
    ids=["falls-below", "always-below", "in-two-parts"],
)
def test_always_clipping_is_that_of_each_step(tmp_path: Path, bounds: np.ndarray, share: float | None) -> None:
    norms = np.random.default_rng(0).uniform(0.9, 1.1, N)
    assert (bounds[-1] < norms).all()
    analysis = analyze(read_run(logged(tmp_path / "log.csv", norms, bounds)))
    found = [f for f in analysis.findings if f.rule == "GC201"]
    if share is None:
        assert np.mean(norms > bounds) < 0.9
        assert not found
    else:
        assert found[0].evidence["clipped_fraction"] == pytest.approx(np.mean(norms > bounds)) == share
        assert "of the norms exceed the max_norm of their step" in found[0].message


def test_a_bound_is_no_series_of_the_schema(tmp_path: Path) -> None:
    norms = np.random.default_rng(0).uniform(0.9, 1.1, N)
    run = read_run(logged(tmp_path / "log.csv", norms, np.linspace(0.8, 0.1, N)))
    assert set(json.loads(render_json([analyze(run)]))["runs"][0]["series"]) == {"loss", "grad_norm"}


def test_the_largest_norm_of_a_layer_is_no_bound(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    norms = rng.uniform(0.9, 1.1, N)
    run = read_run(logged(tmp_path / "log.csv", norms, norms * rng.uniform(0.3, 0.9, N)))
    assert not [f for f in analyze(run).findings if f.rule in ("GC201", "GC202")]
    assert run.max_norm is None
