"""From a Log to Runs: keys, steps, resumes, restarts, several writers, stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import Damage, NormStage, Run
from gradclip_cli.readers import read, steps
from gradclip_cli.readers.assemble import assemble
from gradclip_cli.readers.log import Column, Log, Wanted
from gradclip_cli.readers.merge import merge
from gradclip_cli.readers.stage import pile_up


def rows(format: str = "test", rounded: str | None = None, **columns: list[float | None]) -> Log:
    """A row log; None is a blank cell."""
    out = {}
    for key, cells in columns.items():
        at = [i for i, c in enumerate(cells) if c is not None]
        out[key] = Column(np.array(at, np.int64), np.array([cells[i] for i in at], np.float64), key == rounded)
    return Log(format, out)


def one(log: Log, wanted: Wanted | None = None) -> Run:
    runs = assemble("x.csv", log, wanted or Wanted())
    assert len(runs) == 1
    return runs[0]


def test_blank_cells_are_absent_and_nan_is_data() -> None:
    run = one(rows(step=[10, 20, 30, 40], loss=[3.0, None, float("nan"), 1.0], grad_norm=[None, 1.0, 2.0, None]))
    assert run.series["loss"].steps.tolist() == [10, 30, 40]
    assert np.isnan(run.series["loss"].values[1])
    assert run.series["grad_norm"].steps.tolist() == [20, 30]
    assert run.steps.tolist() == [10, 20, 30, 40]


def test_rows_are_counted_where_there_is_no_step() -> None:
    run = one(rows(loss=[3.0, 2.0, 1.0]))
    assert not run.steps_known
    assert run.steps.tolist() == [0, 1, 2]
    assert any("no step counter" in n for n in run.notes)


def test_a_fractional_epoch_is_no_step_and_a_constant_is_none() -> None:
    assert not one(rows(epoch=[0.01, 0.02, 0.03, 0.04], loss=[3.0, 2.0, 1.0, 1.0])).steps_known
    assert not one(rows(step=[0, 0, 0, 0], loss=[3.0, 2.0, 1.0, 1.0])).steps_known
    assert one(rows(epoch=[0, 1, 2, 3], loss=[3.0, 2.0, 1.0, 1.0])).steps_known


def test_wanted_keys_and_their_errors() -> None:
    log = rows(step=[1, 2, 3], box_loss=[1.0, 2.0, 3.0], cls_loss=[1.0, 1.0, 1.0], other=[5, 6, 7])
    assert one(log, Wanted(loss="box_loss")).series["loss"].key == "box_loss"
    assert one(log, Wanted(loss="cls_loss", step="other")).steps.tolist() == [5, 6, 7]
    with pytest.raises(GradclipError, match="no key 'bx_loss'") as e:
        assemble("x.csv", log, Wanted(loss="bx_loss"))
    assert "box_loss" in str(e.value.hint)
    with pytest.raises(GradclipError, match="neither a training loss nor a gradient norm") as e:
        assemble("x.csv", log, Wanted())
    assert "box_loss" in str(e.value.hint)
    with pytest.raises(GradclipError, match="holds fractions"):
        assemble("x.csv", rows(step=[1.5, 2.5, 3.2], loss=[1.0, 1.0, 1.0]), Wanted(step="step"))


def test_the_only_loss_like_key_is_taken_with_a_note() -> None:
    run = one(rows(step=[1, 2, 3], critic_loss=[3.0, 2.0, 1.0], val_loss=[1.0, 1.0, 1.0]))
    assert run.series["loss"].key == "critic_loss"
    assert any("critic_loss" in n for n in run.notes)


def test_a_value_column_is_named_by_its_file() -> None:
    log = rows(step=[1, 2, 3], Value=[3.0, 2.0, 1.0])
    (run,) = assemble("runs/run-a-tag-train_loss.csv", log, Wanted())
    assert run.series["loss"].key == "Value"
    (run,) = assemble("runs/tag-grad-norm.csv", log, Wanted())
    assert run.series["grad_norm"].key == "Value"


def test_tensors_are_series() -> None:
    run = one(rows(step=[1, 2], loss=[1.0, 1.0], **{"grad_norm/a.weight": [0.1, 0.2], "grad_norm": [0.3, 0.4]}))
    assert set(run.series) == {"loss", "grad_norm", "grad_norm/a.weight"}


def test_a_resume_keeps_what_came_later_and_remembers_the_branch() -> None:
    step = [*range(0, 100), *range(80, 150)]
    loss = [*(np.ones(100)), *(np.full(70, 2.0))]
    run = one(rows(step=step, loss=loss))
    series = run.series["loss"]
    assert series.steps.tolist() == list(range(150))
    assert series.values[79] == 1.0
    assert series.values[80] == 2.0
    (rewind,) = run.rewinds
    assert (rewind.resumed_at, rewind.last_before, rewind.discarded) == (80, 99, 20)
    assert rewind.branch["loss"].steps.tolist() == list(range(100))


def test_two_resumes_one_behind_the_other() -> None:
    step = [*range(0, 50), *range(40, 60), *range(30, 70)]
    run = one(rows(step=step, loss=[float(i) for i in range(len(step))]))
    assert run.series["loss"].steps.tolist() == list(range(70))
    assert run.series["loss"].values[30] == 70.0
    assert [r.resumed_at for r in run.rewinds] == [40, 30]
    assert run.rewinds[1].branch["loss"].steps.tolist() == list(range(60))


def test_a_restart_from_the_beginning_is_another_run() -> None:
    runs = assemble("a.log", rows(step=[*range(0, 30), *range(0, 20)], loss=[*np.ones(30), *np.full(20, 2.0)], lr=[0.1] * 50), Wanted())
    assert [r.source for r in runs] == ["a.log#1", "a.log#2"]
    assert [len(r.series["loss"]) for r in runs] == [30, 20]
    assert [len(r.series["lr"]) for r in runs] == [30, 20]
    assert all(any("GC304" in n for n in r.notes) for r in runs)


def test_a_repeated_step_keeps_the_later_value() -> None:
    run = one(rows(step=[1, 2, 2, 3], loss=[1.0, 5.0, 6.0, 2.0]))
    assert run.series["loss"].values.tolist() == [1.0, 6.0, 2.0]
    assert any("logged twice" in n for n in run.notes)


def test_several_writers_on_one_file() -> None:
    step, loss = [], []
    for s in range(10, 400, 10):
        step += [s, s] if s % 20 else [s, s - 10]
        loss += [1.0 / s, 1.1 / s]
    loss[5] = float("nan")
    run = one(rows(step=step, loss=loss))
    assert (np.diff(run.series["loss"].steps) > 0).all()
    assert np.isnan(run.series["loss"].values).sum() == 1, "a nan of one writer must not be hidden by another's number"
    assert any("several writers" in n for n in run.notes)


def test_steps_within_epochs_are_added_up() -> None:
    step, epoch = [], []
    for e in range(4):
        step += range(0, 100, 10)
        epoch += [e] * 10
    loss = np.linspace(3, 1, 40).tolist()
    run = one(rows(step=step, epoch=epoch, loss=loss))
    assert run.series["loss"].steps.tolist() == list(range(0, 400, 10))
    # The same without an epoch column: the loss goes on where it was.
    assert one(rows(step=step, loss=loss)).series["loss"].steps.tolist() == list(range(0, 400, 10))
    # New runs: the loss starts high again.
    assert len(assemble("x", rows(step=step, loss=np.tile(np.linspace(3, 1, 10), 4).tolist()), Wanted())) == 4


def test_rounded_steps_are_spread() -> None:
    exact = np.arange(1, 101) * 200
    printed = np.where(exact < 1000, exact, exact // 1000 * 1000)
    assert steps.unrounded(printed).tolist() == exact.tolist()  # type: ignore[union-attr]
    run = one(rows(rounded="step", step=printed.tolist(), loss=np.linspace(3, 1, 100).tolist()))
    assert run.series["loss"].steps.tolist() == exact.tolist()
    irregular = np.array([1000, 1000, 2000, 2000, 2000, 5000])
    spread = steps.unrounded(irregular)
    assert spread is not None
    assert (np.diff(spread) > 0).all()
    assert spread[0] == 1000
    assert spread[2] == 2000
    assert spread[5] == 5000
    assert steps.unrounded(np.array([3, 2, 2])) is None


def test_pile_up() -> None:
    rng = np.random.default_rng(0)
    norms = np.exp(rng.normal(-0.5, 0.5, 1000))
    assert pile_up(norms) is None
    clipped = np.minimum(norms, 1.0) * (1 - 1e-7)
    assert pile_up(clipped) == 1.0
    assert pile_up(np.ones(100)) is None, "a constant is no pile"
    assert pile_up(np.round(norms, 1)) is None, "coarse rounding is no pile"
    run = one(rows(step=list(range(1000)), loss=[1.0] * 1000, grad_norm=clipped.tolist()))
    assert run.norm_stage is NormStage.POST_CLIP
    assert run.max_norm == 1.0


def test_files_of_one_run_are_merged_in_order() -> None:
    a, b = rows(step=[1, 2], loss=[1.0, 2.0]), rows(step=[3, 4], loss=[3.0, 4.0], lr=[0.1, 0.1])
    run = one(merge([a, b]))
    assert run.series["loss"].values.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert run.series["lr"].steps.tolist() == [3, 4]
    assert any("read from 2 files" in n for n in run.notes)


def test_series_logged_by_step_rewind_each_by_itself() -> None:
    at = np.array([*range(50), *range(40, 60)], np.int64)
    log = Log("events", {"loss": Column(at, np.arange(70.0)), "grad_norm": Column(at[::2], np.arange(35.0))}, by_step=True)
    run = one(log)
    assert run.series["loss"].steps.tolist() == list(range(60))
    assert (np.diff(run.series["grad_norm"].steps) > 0).all()
    assert run.rewinds[0].resumed_at == 40


def test_max_norm_is_read_where_it_is_logged_and_constant() -> None:
    assert one(rows(step=[1, 2, 3], loss=[1.0, 1.0, 1.0], max_grad_norm=[0.5, 0.5, 0.5])).max_norm == 0.5
    assert one(rows(step=[1, 2, 3], loss=[1.0, 1.0, 1.0], max_grad_norm=[0.5, 0.7, 0.5])).max_norm is None


def test_files_of_one_key_each_stand_side_by_side() -> None:
    run = one(merge([rows(loss=[3.0, 2.0, 1.0]), rows(grad_norm=[0.3, 0.2, 0.1])]))
    assert run.series["loss"].steps.tolist() == run.series["grad_norm"].steps.tolist() == [0, 1, 2]


def test_steps_and_counted_rows_do_not_mix() -> None:
    stepped = Log("mlflow", {"loss": Column(np.array([10, 20, 30]), np.array([3.0, 2.0, 1.0]))}, by_step=True)
    run = one(merge([stepped, rows(grad_norm=[0.3, 0.2])]))
    assert set(run.series) == {"loss"}
    assert any("'grad_norm' without steps" in n for n in run.notes)


def test_newest_row_first_is_turned_round() -> None:
    run = one(rows(step=[3, 2, 1], loss=[1.0, 2.0, 3.0], grad_norm=[0.1, None, 0.3]))
    assert run.series["loss"].values.tolist() == [3.0, 2.0, 1.0]
    assert run.series["grad_norm"].steps.tolist() == [1, 3]


@pytest.mark.parametrize("format", ["csv", "json-lines", "text", "parquet"])
def test_a_column_called_loss_makes_no_training_run(format: str) -> None:
    for log in (rows(format, loss=[1.0, 2.0]), rows(format, packet_loss=[1.0] * 9, step=list(range(9))), rows(format, norm=[1.0] * 9)):
        with pytest.raises(GradclipError, match="nothing else here speaks of a training") as e:
            assemble("x", log, Wanted())
        assert "say so with --" in str(e.value.hint)
    assert one(rows(format, loss=[1.0, 2.0, 3.0]), Wanted(loss="loss")).series
    assert one(rows(format, loss=[1.0, 2.0, 3.0], step=[1, 2, 3])).series
    assert one(rows(format, loss=[1.0, 2.0, 3.0], grad_norm=[1.0, 2.0, 3.0])).series
    assert one(rows("huggingface-console", loss=[1.0, 2.0, 3.0])).series


def test_why_a_step_was_refused() -> None:
    for cells, why in (
        ([-1, 0, 1], "negative"),
        ([0.5, 1.5, 2.5], "fractions"),
        ([2.0**60] * 3, "too large"),
        ([1, None, None], "beside most"),
    ):
        run = one(rows(step=cells, loss=[1.0, 2.0, 3.0]))  # type: ignore[arg-type]
        assert not run.steps_known
        assert why in " ".join(run.notes)


def test_a_short_epoch_is_not_taken_for_several_writers() -> None:
    step, epoch = [0, 1, 2, 3, 4] * 100, [e for e in range(100) for _ in range(5)]
    loss = np.linspace(3, 1, 500).tolist()
    assert len(one(rows(step=step, epoch=epoch, loss=loss)).series["loss"]) == 500
    assert len(one(rows(step=step, loss=loss)).series["loss"]) == 500


def test_ranks_in_one_table_keep_the_non_finite() -> None:
    step = [s for s in range(100) for _ in range(8)]
    loss = [3 - s / 50 + r / 1000 for s in range(100) for r in range(8)]
    loss[50 * 8 + 5] = float("nan")
    run = one(rows(step=step, loss=loss))
    assert run.series["loss"].steps.tolist() == list(range(100))
    assert np.flatnonzero(np.isnan(run.series["loss"].values)).tolist() == [50]


def test_an_epoch_that_stands_in_many_rows_is_no_step() -> None:
    loss = np.linspace(3, 1, 400).tolist()
    run = one(rows(loss=loss, grad_norm=loss, epoch=[float(i // 100) for i in range(400)]))
    assert (len(run.series["loss"]), run.steps_known) == (400, False)
    assert "'epoch' is the same in most rows" in " ".join(run.notes)
    # A row of training and one of an evaluation in each epoch.
    pairs: list[float | None] = [v for i in range(50) for v in (3 - i / 50, None)]
    assert one(rows(loss=pairs, epoch=[float(i // 2) for i in range(100)])).series["loss"].steps.tolist() == [*range(50)]


def test_points_that_were_all_logged_for_one_step_are_counted() -> None:
    at, values = np.zeros(50, np.int64), np.linspace(3, 1, 50)
    run = one(Log("tensorboard", {"loss": Column(at, values), "grad_norm": Column(at, values)}, by_step=True))
    assert run.series["loss"].values.tolist() == values.tolist()
    assert not run.steps_known
    assert run.notes[0] == "every value of 'loss' was logged for step 0"


@pytest.mark.parametrize(("factor", "noise", "told"), [(1.5, 0.02, True), (1.0, 0.4, False), (1.05, 0.02, False), (1.5, 0.4, True)])
def test_several_runs_in_one_table_are_not_taken_for_ranks_of_one(factor: float, noise: float, told: bool) -> None:
    rng = np.random.default_rng(0)
    step = [s for s in range(200) for _ in range(2)]
    loss = [
        (3 - s / 100) * (factor if second else 1.0) * float(np.exp(noise * rng.normal())) for s in range(200) for second in (False, True)
    ]
    run = one(rows(step=step, loss=loss))
    assert [d.lost for d in run.damage] == ["all but the first of each step"] * told


def test_a_second_run_that_diverged_is_not_overlooked() -> None:
    step = [s for s in range(200) for _ in range(2)]
    loss = [9.0 if second and s >= 160 else 3 - s / 100 for s in range(200) for second in (False, True)]
    (damage,) = one(rows(step=step, loss=loss)).damage
    assert damage.where == "step 160 on"


def test_damage_of_a_key_that_the_run_does_not_use_is_not_told() -> None:
    log = rows(step=[0, 1, 2], loss=[3.0, 2.0, 1.0], loss_ctc=[1.0, 1.0, None])
    whole, used, unused = (Damage("row 3", "text", "that value", key) for key in (None, "loss", "loss_ctc"))
    assert one(replace(log, damage=(whole, used, unused))).damage == (whole, used)
    assert one(replace(log, damage=(whole, used, unused)), Wanted(loss="loss_ctc")).damage == (whole, unused)


def test_three_resumes_to_the_same_step_have_a_branch_each() -> None:
    step = [*range(0, 60), *range(50, 60), *range(50, 60), *range(50, 100)]
    loss = [*([1.0] * 60), *([2.0] * 10), *([3.0] * 10), *([4.0] * 50)]
    run = one(rows(step=step, loss=loss, grad_norm=loss))
    assert [r.discarded for r in run.rewinds] == [10, 10, 10]
    for name in ("loss", "grad_norm"):
        assert [r.branch[name].values[-1] for r in run.rewinds] == [1.0, 2.0, 3.0]


def test_a_loss_scale_is_no_loss(tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("step,grad_norm,loss_scale\n" + "".join(f"{i},{1 + i % 7 / 10},65536\n" for i in range(60)))
    (run,) = read(tmp_path / "run.csv")
    assert isinstance(run, Run)
    assert set(run.series) == {"grad_norm", "loss_scale"}
