"""What a console log says in words, on other ranks, under another key or with decimal commas must not be lost."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import Damage
from gradclip_cli.readers.log import Wanted
from tests.test_reader_text_formats import log_of

GOOD = "".join(f"step {i} | loss: {3 - i / 10:.4f} | grad norm: 0.5{i}\n" for i in range(1, 10))


# Text in place of numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["diverged!!", "N/A", "-", "None"])
def test_text_in_place_of_a_loss_is_damage(tmp_path: Path, text: str) -> None:
    log = log_of(tmp_path, GOOD + "".join(f"step {i} | loss: {text}\n" for i in range(10, 14)))
    assert log.damage == (
        Damage("line 10", f"from here on 'loss' is text in 4 lines, such as {text!r}, expected numbers", "those values", "loss"),
    )
    assert len(log.columns["loss"].values) == 9


def test_text_in_place_of_a_loss_beside_a_norm_is_damage(tmp_path: Path) -> None:
    log = log_of(tmp_path, GOOD + "step 10 | loss: overflow | grad norm: 0.5\n" + GOOD.replace("step ", "step 1"))
    assert log.damage == (
        Damage("line 10", "from here on 'loss' is text in 1 line, such as 'overflow', expected numbers", "those values", "loss"),
    )


def test_a_norm_that_is_absent_now_and_then_is_no_damage(tmp_path: Path) -> None:
    every = (f"step {i} | loss: 2.{i} | grad norm: {'0.5' if i % 4 == 0 else 'N/A'}\n" for i in range(1, 24))
    assert log_of(tmp_path, "".join(every)).damage == ()


def test_a_setting_of_the_same_name_is_no_damage(tmp_path: Path) -> None:
    for text in ("loss: cross_entropy, lr: 0.1\n" + GOOD, GOOD + "loss: cross_entropy, lr: 0.1\n", GOOD + "best loss: see step 3\n"):
        assert log_of(tmp_path, text).damage == ()


# Messages --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        "Loss is nan, stopping training",
        "FloatingPointError: Loss became infinite or NaN at iteration=10!",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "ERROR: NaN loss encountered",
        "found non-finite loss at step 10",
        "Training stopped: loss diverged",
        "WARNING: NaN or Inf found in input tensor.",
        "WARNING: loss is nan, step will be skipped",
        "NaN loss at step 40, this batch will be ignored",
        "stopping due to nan loss",
        "[rank0]: nan loss, exiting",
    ],
)
def test_a_message_that_the_loss_is_no_number_is_damage(tmp_path: Path, message: str) -> None:
    log = log_of(tmp_path, GOOD + message + "\n" + message + "\n")
    assert log.damage == (Damage("line 10", f"the log says: {message!r}", "the values of that step"),)
    assert any(message in note for note in log.notes)


def test_a_message_about_a_nan_that_is_logged_is_no_damage(tmp_path: Path) -> None:
    log = log_of(tmp_path, GOOD + "step 10 | loss: nan | grad norm: nan\nLoss is nan, stopping training\n")
    assert log.damage == ()
    assert math.isnan(log.columns["loss"].values[-1])


@pytest.mark.parametrize(
    "line",
    [
        "[Check] loss: nan=False, inf=False",
        "python train.py --check-nan --stop-if-loss-is-nan 1",
        "number of nan iterations: 0",
        "training stops if the loss is nan",
        "loss is nan: False",
        "NaN loss: 0",
        "INFO: no NaN loss in 10 steps",
        "terminate_on_nan=True",
        '    raise RuntimeError("Loss is nan")',
        "loss is finite",
        "Warning: NaN loss steps will be ignored",
        "skip nan batches enabled",
        "NaN loss guard enabled",
        "stop training on NaN loss",
        "detect nan loss = True",
        "tolerate up to 5 NaN loss steps",
        "steps whose loss is nan are skipped",
        "found 0 steps with nan loss",
        "nan loss handling: skip",
    ],
)
def test_a_line_that_only_speaks_of_nan_is_no_damage(tmp_path: Path, line: str) -> None:
    assert log_of(tmp_path, line + "\n" + GOOD + line + "\n").damage == ()


def test_a_line_with_zero_bytes_is_dropped_and_damage(tmp_path: Path) -> None:
    log = log_of(tmp_path, GOOD + "\0" * 50 + "step 11 | loss: nan | grad norm: nan\n" + GOOD.replace("step ", "step 2"))
    assert log.damage == (Damage("line 10", "50 zero bytes, expected a row", "that row"),)
    assert [int(s) for s in log.columns["step"].values] == [*range(1, 10), *range(21, 30)]


# Other ranks, other keys, other lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("grouped", [False, True])
def test_a_loss_of_another_rank_that_is_not_finite_is_kept(tmp_path: Path, grouped: bool) -> None:
    order = [(r, i) for r in range(3) for i in range(12)] if grouped else [(r, i) for i in range(12) for r in range(3)]
    bad = {(1, 4): "inf", (2, 4): "nan", (2, 7): "-inf"}
    log = log_of(tmp_path, "".join(f"[rank{r}] step {i} loss: {bad.get((r, i), f'2.{i:02d}')}\n" for r, i in order))
    loss = log.columns["loss"].values
    assert len(loss) == 12
    assert math.isnan(loss[4])
    assert loss[7] == -math.inf
    assert [v for i, v in enumerate(loss) if i not in (4, 7)] == [2 + i / 100 for i in range(12) if i not in (4, 7)]
    assert any("values of another that are not finite" in note for note in log.notes)


def _ranks(value: Callable[[int, int, float], float], noise: float) -> str:
    rng = np.random.default_rng(0)
    rows = [(i, r, float((2 + 3 * np.exp(-i / 50)) * np.exp(rng.normal(0, noise)))) for i in range(200) for r in range(4)]
    return "".join(f"[rank{r}] step {i} loss: {value(i, r, v):.4f}\n" for i, r, v in rows)


@pytest.mark.parametrize("begins", [30, 120], ids=["early", "late"])
def test_a_loss_that_diverges_on_another_rank_is_kept(tmp_path: Path, begins: int) -> None:
    log = log_of(tmp_path, _ranks(lambda i, r, v: v * np.exp(max(i - begins, 0) / 15) if r == 2 else v, 0.1))
    loss = log.columns["loss"].values
    assert len(loss) == 200
    assert loss[: begins - 1].max() < 8
    assert (loss[begins + 50 :] > 30).all()
    assert any("values of another that are far above them" in note for note in log.notes)


def test_a_spike_on_another_rank_is_kept(tmp_path: Path) -> None:
    loss = log_of(tmp_path, _ranks(lambda i, r, v: v + 50 if (i, r) == (70, 3) else v, 0.1)).columns["loss"].values
    assert np.flatnonzero(loss > 30).tolist() == [70]


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.2])
def test_ranks_that_only_scatter_leave_the_first_as_it_is(tmp_path: Path, noise: float) -> None:
    text = _ranks(lambda i, r, v: v, noise)
    first = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("[rank0]")]
    assert log_of(tmp_path, text).columns["loss"].values.tolist() == first


def test_ranks_that_log_different_things_leave_the_first_as_it_is(tmp_path: Path) -> None:
    text = _ranks(lambda i, r, v: v * 50 if r == 3 else v, 0.1)
    assert log_of(tmp_path, text).columns["loss"].values.max() < 8


def test_megatron_counts_steps_with_a_loss_that_is_nan(tmp_path: Path) -> None:
    def line(i: int, loss: str, skipped: int, nan: int) -> str:
        return (
            f" iteration {i}/ 500 | elapsed time per iteration (ms): 100.0 | learning rate: 1.0E-4 |{loss} loss scale: 65536.0 | "
            f"number of skipped iterations: {skipped} | number of nan iterations: {nan} |\n"
        )

    good = [line(i, f" lm loss: 2.{i}E+00 |", 0, 0) for i in range(1, 7)]
    log = log_of(tmp_path, "".join([line(0, "", 1, 0), *good, *(line(i, "", 1, 1) for i in range(7, 10))]))
    loss = log.columns["lm loss"]
    assert loss.at.tolist() == list(range(1, 10))
    assert [math.isnan(v) for v in loss.values] == [False] * 6 + [True] * 3
    assert [o.step for o in log.overflows] == [0]


def test_a_key_renamed_in_mid_run_is_one_series(tmp_path: Path) -> None:
    text = "".join(f"step {i} loss: 2.{i:02d} norm: 0.{i + 1}\n" for i in range(20))
    log = log_of(tmp_path, text + "".join(f"[step {i}] train_loss=3.{i} gnorm=0.{i}\n" for i in range(20, 40)))
    assert log.columns["loss"].values.tolist() == [2 + i / 100 for i in range(20)] + [float(f"3.{i}") for i in range(20, 40)]
    assert len(log.columns["norm"].values) == 40
    assert "'train_loss' continues 'loss' from step 20 on" in log.notes


def test_two_losses_side_by_side_stay_two(tmp_path: Path) -> None:
    log = log_of(tmp_path, "".join(f"step {i} loss: 2.{i:02d} lm_loss: 1.{i:02d}\n" for i in range(20)))
    assert len(log.columns["loss"].values) == len(log.columns["lm_loss"].values) == 20


def test_decimal_commas(tmp_path: Path) -> None:
    log = log_of(tmp_path, "".join(f"step {i} loss: {2 + i},1234 grad_norm: 0,37{i}\n" for i in range(8)))
    assert log.columns["loss"].values.tolist() == [2 + i + 0.1234 for i in range(8)]
    assert log.columns["grad_norm"].values.tolist() == [float(f"0.37{i}") for i in range(8)]
    assert any("decimal commas" in note for note in log.notes)


def test_thousands_separators_stay_what_they_are(tmp_path: Path) -> None:
    log = log_of(tmp_path, "".join(f"step {i} loss: {2 + i},123 grad_norm: 0.5\n" for i in range(8)))
    assert log.columns["loss"].values.tolist() == [2123 + 1000 * i for i in range(8)]


def test_a_last_word_marks_an_evaluation(tmp_path: Path) -> None:
    log = log_of(
        tmp_path, "".join(f"step {i} | loss: 2.{i} | lr 0.1\n" + f"step {i} | loss: 9.0 | val\n" * (i % 4 == 0) for i in range(1, 9))
    )
    assert log.columns["loss"].values.tolist() == [float(f"2.{i}") for i in range(1, 9)]


def test_the_keys_that_stand_before_numbers_are_told(tmp_path: Path) -> None:
    own = "".join(f"it={i:05d} | L=4.{i} | gn=1.60e+00\n" for i in range(9))
    with pytest.raises(GradclipError, match="no series in this text") as told:
        log_of(tmp_path, own)
    assert (told.value.hint or "") == "numbers stand behind 'it', 'L', 'gn'; name the one that is the loss with --loss"
    with pytest.raises(GradclipError, match="no key 'nope' in this log") as told:
        log_of(tmp_path, "".join(f"loss: 2.{i} grad: 0.{i}\n" for i in range(9)), Wanted(grad_norm="nope"))
    assert told.value.hint == "numbers stand behind 'loss', 'grad'"


def test_a_new_key_on_every_line_takes_linear_time(tmp_path: Path) -> None:
    import time

    from gradclip_cli import GradclipError, read_runs

    def seconds(n: int) -> float:
        (tmp_path / "x.log").write_text("".join(f"step {i} loss: 2.0 key{i}=1 loss_{i}=3\n" for i in range(n)))
        start = time.process_time()
        with contextlib.suppress(GradclipError):
            read_runs(tmp_path / "x.log")
        return time.process_time() - start

    seconds(100)
    assert seconds(6000) < 9 * seconds(1500), "four times the lines; a square would be sixteen times the work"


def test_a_text_of_one_endless_line_says_that_it_was_passed_over(tmp_path: Path) -> None:
    with pytest.raises(GradclipError, match=r"no series in this text \(1 line of more than 64 KiB was passed over\)"):
        log_of(tmp_path, "step 1 loss: 2.0 " + "x" * 100_000 + "\n")


def test_titles_that_a_terminal_was_sent_make_no_binary_of_a_log(tmp_path: Path) -> None:
    log = log_of(tmp_path, "".join(f"\x1b]0;{i}\x07step {i} loss: 2.{i:02d}\n" for i in range(50)))
    assert log.columns["loss"].values.tolist() == [float(f"2.{i:02d}") for i in range(50)]
