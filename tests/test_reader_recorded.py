"""Run directories that `gradclip record` wrote, as runs to judge."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gradclip_cli import analyze, read_run, read_runs
from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import NormStage, Sampling
from gradclip_cli.runfile import RunWriter
from tests import cases, recorded_cases


def test_the_series_of_a_recorded_run(tmp_path: Path) -> None:
    run = read_run(recorded_cases.write(tmp_path / "run"))
    assert run.format == "recorded"
    assert run.source == str(tmp_path / "run")
    assert set(run.series) == {"loss", "grad_norm", "lr", "clip_coef", "grad_norm/embed.weight", "grad_norm/head.bias"}
    assert run.steps_known
    assert run.series["loss"].steps.tolist() == cases.STEPS.tolist()
    np.testing.assert_array_equal(run.series["loss"].values, cases.LOSS)
    np.testing.assert_array_equal(run.series["grad_norm"].values, cases.NORM)
    np.testing.assert_array_equal(run.series["grad_norm/head.bias"].values, (cases.NORM * np.sqrt(2 / 3)).astype(np.float32))
    assert run.norm_stage is NormStage.PRE_CLIP
    assert run.max_norm == 1.0
    assert run.series["grad_norm"].sampling is Sampling.INSTANT
    assert run.damage == ()
    assert run.recorded is not None
    assert run.recorded.parts[0].tensors == recorded_cases.TENSORS


def test_a_run_directory_is_one_run(tmp_path: Path) -> None:
    recorded_cases.write(tmp_path / "a")
    recorded_cases.write(tmp_path / "b", rank=0, world_size=2)
    recorded_cases.write(tmp_path / "b", rank=1, world_size=2)
    # Another loss, so that it is no copy of the first.
    header = json.loads((tmp_path / "b/run.json").read_text())
    assert header["world_size"] == 2
    runs = read_runs(tmp_path)
    assert {r.format for r in runs} == {"recorded"}
    # What somebody else put beside it is found all the same.
    cases.csv(tmp_path / "a")
    text = (tmp_path / "a/run.csv").read_text()
    (tmp_path / "a/run.csv").write_text(text.replace(",2.", ",7."))
    assert [r.format for r in read_runs(tmp_path / "a")] == ["recorded", "csv"]
    assert read_run(tmp_path / "a/run.json").format == "recorded"


def test_absent_and_measured_nan(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {"world_size": 1})
    nan = np.nan
    columns = {
        "loss": np.array([3.0, nan, nan, 2.0]),
        "has_loss": np.array([1.0, 1.0, 0.0, 1.0]),
        "grad_norm": np.array([1.0, nan, np.inf, 2.0]),
        "has_grad_norm": np.array([1.0, 1.0, 1.0, 1.0]),
        "lr": np.full(4, 0.1),
        "loss_scale": np.array([8.0, 8.0, 8.0, 4.0]),
        "skipped": np.array([0.0, 0.0, 1.0, 0.0]),
        "max_norm": np.array([1.0, 1.0, np.inf, nan]),
    }
    writer.append(np.array([1, 2, 3, 4]), columns, None)
    writer.close("finished")
    run = read_run(tmp_path / "run")
    assert run.series["loss"].steps.tolist() == [1, 2, 4]
    np.testing.assert_array_equal(run.series["loss"].values, [3, nan, 2])
    # The scaler threw the third update away: its norm was used by nobody.
    assert run.series["grad_norm"].steps.tolist() == [1, 2, 4]
    assert [(o.step, o.loss_scale) for o in run.overflows] == [(3, 4.0)]
    assert any("1 update that the loss scaler skipped" in n for n in run.notes)
    assert run.max_norm == 1.0


def test_without_a_norm_from_before_clipping_the_one_used_is_shown(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    columns = {
        "loss": cases.LOSS,
        "grad_norm": np.full(cases.N, np.nan),
        "has_grad_norm": np.zeros(cases.N),
        "grad_norm_used": cases.NORM,
        "has_grad_norm_used": np.ones(cases.N),
    }
    writer.append(cases.STEPS, columns, None)
    writer.close("finished")
    run = read_run(tmp_path / "run")
    np.testing.assert_array_equal(run.series["grad_norm"].values, cases.NORM)
    assert run.norm_stage is NormStage.UNKNOWN
    assert any("may have changed the gradients" in n for n in run.notes)


def test_optimizers_that_take_turns_are_not_mixed(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    steps = np.arange(1, 91)
    optimizer = np.where(steps % 3 == 0, 1.0, 0.0)
    columns = {"loss": np.where(optimizer == 1, 50.0, 2.0), "grad_norm": np.where(optimizer == 1, 900.0, 1.0), "optimizer": optimizer}
    norms = np.where(optimizer[:, None] == [[0.0, 1.0]], 1.0, np.nan).astype(np.float32)
    writer.add_tensors(recorded_cases.TENSORS)
    writer.append(steps, columns, norms)
    writer.close("finished")
    run = read_run(tmp_path / "run")
    assert run.series["loss"].steps.tolist() == steps[optimizer == 0].tolist()
    assert set(run.series["grad_norm"].values) == {1.0}
    assert "grad_norm/head.bias" not in run.series
    assert any("2 optimizers take turns" in n and "not judged here: 1" in n for n in run.notes)


def test_updates_of_other_optimizers_in_between_are_no_gaps(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    steps = np.arange(1, 91)
    writer.append(steps, {"grad_norm": np.ones(90), "optimizer": (steps % 2).astype(np.float64)}, None)
    writer.close("finished")
    run = read_run(tmp_path / "run")
    assert run.series["grad_norm"].steps.tolist() == steps[1::2].tolist()
    assert "GC301" not in {finding.rule for finding in analyze(run).findings}


def test_a_killed_run_is_damaged_and_a_failed_one_is_noted(tmp_path: Path) -> None:
    killed = analyze(read_run(recorded_cases.write(tmp_path / "killed", ended=None)))
    (finding,) = [f for f in killed.findings if f.rule == "GC307"]
    assert "killed" in finding.message
    failed = read_run(recorded_cases.write(tmp_path / "failed", ended="RuntimeError: out of memory"))
    assert failed.damage == ()
    assert "the script ended so: RuntimeError: out of memory" in failed.notes


def test_a_live_run_is_read_without_complaint(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    writer.append(cases.STEPS, recorded_cases.columns(slice(0, 60)), None)
    run = read_run(tmp_path / "run")
    assert len(run.series["loss"]) == cases.N
    assert run.damage == ()
    assert any("still running" in n for n in run.notes)
    writer.close("finished")


def test_nothing_recorded(tmp_path: Path) -> None:
    RunWriter(tmp_path / "run", {}).close("ValueError: bad argument")
    with pytest.raises(GradclipError, match="no optimizer update was recorded.*ValueError: bad argument"):
        read_run(tmp_path / "run")


def test_names_of_tensors_cannot_break_out(tmp_path: Path) -> None:
    from gradclip_cli.model.recorded import TensorInfo
    from gradclip_cli.report import FORMATS

    writer = RunWriter(tmp_path / "run", {"ended": "\x1b[2J"})
    writer.add_tensors([TensorInfo("\x1b[2Jw", (1,), "float32")])
    writer.append(cases.STEPS, recorded_cases.columns(slice(0, 60)), np.ones((cases.N, 1), np.float32))
    writer.close("\x1b[31mRuntimeError")
    analysis = analyze(read_run(tmp_path / "run"))
    for render in FORMATS.values():
        assert "\x1b" not in render([analysis], color=False)
