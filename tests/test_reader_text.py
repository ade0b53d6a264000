"""Any console log: what is a series in it, which step it belongs to, and what broken text does to it."""

from __future__ import annotations

import gzip
import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import GRAD_NORM, LOSS
from gradclip_cli.readers import numbers
from gradclip_cli.readers.log import Log, Wanted
from gradclip_cli.readers.open import open_source
from gradclip_cli.readers.text.clean import plain
from gradclip_cli.readers.text.layouts import MAX_LINE, pattern_of, scan, values_at
from gradclip_cli.readers.text.read import read
from tests.test_reader_text_formats import run_of

STEPS = range(1, 9)
LOSSES = [2.5, 2.4, 2.3, 2.25, 2.2, 2.1, 2.05, 2.0]
PLAIN = "".join(f"step {i} | loss: {a:.3f} | grad norm: 0.50 | lr: 1.0e-04\n" for i, a in zip(STEPS, LOSSES, strict=True))


def log_of(folder: Path, text: str | bytes, wanted: Wanted | None = None) -> Log:
    path = folder / "train.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(open_source(path), wanted or Wanted())


def check_plain(log: Log) -> None:
    assert log.step_key == "step"
    assert log.columns["step"].values.tolist() == list(STEPS)
    assert log.columns["loss"].values.tolist() == LOSSES
    assert log.columns["loss"].at.tolist() == list(range(8))
    assert log.columns["grad norm"].values.tolist() == [0.5] * 8


# How a text may come ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.rstrip("\n"),
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r"),
        "\n\n" + PLAIN.replace("\n", "\n\n"),
        PLAIN.replace("loss:", "\x1b[1;31mloss\x1b[0m:"),
        "﻿" + PLAIN,
        PLAIN.encode("utf-16"),
        PLAIN.encode("utf-16-le"),
        gzip.compress(PLAIN.encode(), mtime=0),
        PLAIN.encode() + b"\0" * 300,
        b"\xfd\x80garbage \x80\n" + PLAIN.encode(),
        PLAIN.replace("step", "2024-05-06 07:08:09,123 - INFO - root - step"),
        PLAIN.replace("step", "INFO:root:step"),
        PLAIN.replace("step", "[rank0]: step"),
        "x" * (3 * MAX_LINE) + "\n" + PLAIN,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_the_same_series_however_it_comes(text: str | bytes, tmp_path: Path) -> None:
    check_plain(log_of(tmp_path, text))


def test_escapes_are_stripped_and_redraws_are_lines() -> None:
    assert plain(b"\x1b[32mloss\x1b[0m\x1b]0;title\x07 2\r\n\rab\rcd\x08\x08ef\n") == b"loss 2\n\nab\ncd\nef\n"
    assert plain(b"\x1b[" + b"1;" * 50 + b"\x1b]open") == b"\x1b[" + b"1;" * 50 + b"\x1b]open"


@pytest.mark.parametrize(
    "line",
    [
        "step={i} loss={a} grad_norm=0.5",
        "step: {i}, loss: {a}, grad_norm: 0.5",
        "step {i} loss {a} grad_norm 0.5",
        "Step [{i}/1,000], Loss: {a}, Grad Norm: 0.5",
        "iter {i:06d} | train_loss: {a}e0 | gnorm: .5",
        "Iteration {i}: Training Loss = {a} (avg 9.9), gradient norm = 0.5",
        "[{i}] global_step: {i}  train/loss: {a}  train/grad_norm: 0.5",
        "{{'step': {i}, 'loss': '{a}', 'grad_norm': np.float64(0.5)}}",
        'metrics {{"step": {i}, "loss": {a}, "grad_norm": 5e-1}}',
        "Epoch 0, Step {i}, total used time 7.1{i} (s), avg loss so far is {a}, grad norm 0.5",
        "step {i} loss tensor({a}, device='cuda:0') grad_norm tensor(0.5)",
        "12:30:11 worker step={i}, loss={a}, total_norm=0.500 (7.1s, eta 0:12:01, 61.9ms/step)",
    ],
)
def test_ways_to_print_a_line(line: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, "".join(line.format(i=i, a=a) + "\n" for i, a in zip(STEPS, LOSSES, strict=True)))
    assert run.series[LOSS].values.tolist() == LOSSES
    assert run.series[LOSS].steps.tolist() == list(STEPS)
    assert run.series[GRAD_NORM].values.tolist() == [0.5] * 8


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("nan", math.nan),
        ("NaN", math.nan),
        ("-nan", math.nan),
        ("nan.0", math.nan),
        ("1.#QNAN", math.nan),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
    ],
)
def test_nonfinite_numbers_in_any_spelling(printed: str, value: float, tmp_path: Path) -> None:
    text = PLAIN + "".join(f"step {i} | loss: {printed} | grad norm: {printed} | lr: 1.0e-04\n" for i in (9, 10))
    for key in ("loss", "grad norm"):
        np.testing.assert_array_equal(log_of(tmp_path, text).columns[key].values[-2:], [value, value])


def test_words_that_only_look_like_nan(tmp_path: Path) -> None:
    text = PLAIN.replace("\n", "\n[Check] loss: nan=False, inf=False, value=1.4e-27\nstep_avg:nanms time:125/nans info 3\n")
    log = log_of(tmp_path, text)
    assert np.isfinite(log.columns["loss"].values).all()
    check_plain(log)


def test_thousands_separators(tmp_path: Path) -> None:
    log = log_of(tmp_path, "".join(f"step {1000 * i:,} | loss {1234.5 * i:,.1f} | tok/sec 24,595\n" for i in STEPS))
    assert log.columns["step"].values.tolist() == [1000.0 * i for i in STEPS]
    assert log.columns["loss"].values.tolist() == [1234.5 * i for i in STEPS]


def test_digits_of_a_key_tell_series_apart(tmp_path: Path) -> None:
    text = "".join(f"step {i}\n  loss_1: {i}.25\n  loss_2: {i}.75\n  loss: {i}.50\n" for i in STEPS)
    log = log_of(tmp_path, text)
    for key, fraction in (("loss_1", 0.25), ("loss_2", 0.75), ("loss", 0.5)):
        assert log.columns[key].values.tolist() == [i + fraction for i in STEPS]


def test_keys_come_in_the_order_of_the_text(tmp_path: Path) -> None:
    assert list(log_of(tmp_path, PLAIN).columns) == ["step", "loss", "grad norm", "lr"]


# What is a series ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "    loss = 0.0\n    lr = 0.1\n" * 4,
        "Namespace(lr=0.1, epochs=10, grad_norm=1.0, steps=1000)\n" * 2,
        "the loss of 3 men and a norm of 5\n",
        "parser.add_argument('--loss-scale', default=0)\nloss = nan\n",
        "no numbers at all\n",
        " \n\n\t\n",
        "%PDF-1.4 loss\n",
    ],
)
def test_what_is_no_series(text: str, tmp_path: Path) -> None:
    with pytest.raises(GradclipError, match="no series") as e:
        log_of(tmp_path, text)
    assert e.value.hint


def test_code_and_configuration_before_the_log(tmp_path: Path) -> None:
    code = "".join(f"def f_{i}(loss=0.0, lr=0.1):  # note\n    loss = 0.0\n" for i in range(3000))
    assert len(code) > 65536
    config = "lr: 0.5\nloss_weight: 1.0\nsteps: 8\nmax_grad_norm: 1.0\n{'loss': 'mse', 'lr': 0.5, 'grad_norm': 1.0}\n"
    log = log_of(tmp_path, code + config + PLAIN)
    assert log.columns["loss"].values.tolist() == LOSSES
    assert log.step_key == "step"
    assert log.max_norm == 1.0


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("[Validation] step {i} loss: 9.9", "Validation loss"),
        ("step {i} | val loss: 9.9", "val loss"),
        ("Test: step {i} Loss 9.9 (9.8)", "Test Loss"),
        ("step {i} val_loss=9.9", "val_loss"),
        ("{{'eval_loss': 9.9, 'step': {i}}}", "eval_loss"),
    ],
)
def test_evaluation_is_not_training(line: str, key: str, tmp_path: Path) -> None:
    text = PLAIN.replace("\n", f"\n{line}\n")
    log = log_of(tmp_path, "".join(part.format(i=1) if "{i}" in part else part for part in text.splitlines(True)))
    assert log.columns["loss"].values.tolist() == LOSSES
    assert log.columns[key].values.tolist() == [9.9] * 8


def test_train_and_validation_in_one_line(tmp_path: Path) -> None:
    text = "".join(f"Epoch {i}/8 | Train: loss {a} acc 0.8 | Val: loss 9.9 acc 0.7\n" for i, a in zip(STEPS, LOSSES, strict=True))
    log = log_of(tmp_path, text)
    assert log.columns["loss"].values.tolist() == LOSSES
    assert log.columns["Val loss"].values.tolist() == [9.9] * 8


def test_a_key_that_was_asked_for(tmp_path: Path) -> None:
    text = "".join(f"tick {i} reward: {i}.5 my_gradient_size: 0.5\n" for i in STEPS)
    log = log_of(tmp_path, text, Wanted(loss="reward", grad_norm="my gradient size", step="tick"))
    assert log.step_key == "tick"
    assert log.columns["reward"].values.tolist() == [i + 0.5 for i in STEPS]
    assert log.columns["my_gradient_size"].values.tolist() == [0.5] * 8


# Which step ---------------------------------------------------------------------------------------------------------------


def test_step_from_a_line_above(tmp_path: Path) -> None:
    run = run_of(tmp_path, "".join(f"Step {10 * i}\n  loss: {a}\n  grad_norm: {a}\n" for i, a in zip(STEPS, LOSSES, strict=True)))
    assert run.series[LOSS].steps.tolist() == [10 * i for i in STEPS]
    assert run.series[GRAD_NORM].steps.tolist() == [10 * i for i in STEPS]


def test_step_within_an_epoch_of_known_and_unknown_size(tmp_path: Path) -> None:
    known = run_of(
        tmp_path, "".join(f"Epoch [{e}/9], Step [{100 * i}/600], Loss: {9 - e - i / 9:.4f}\n" for e in (1, 2, 3) for i in range(1, 7))
    )
    assert known.series[LOSS].steps.tolist() == [100 * i for i in range(1, 19)]
    seen = run_of(tmp_path, "".join(f"Epoch {e}, Step {25 * i}, loss {9 - e - i / 9:.4f}\n" for e in range(3) for i in range(1, 6)))
    assert seen.series[LOSS].steps.tolist() == [25 * i for i in range(1, 16)]
    tutorial = run_of(tmp_path, "".join(f"[{e}, {2000 * i:5d}] loss: {9 - e - i / 9:.4f}\n" for e in (1, 2) for i in range(1, 7)))
    assert tutorial.series[LOSS].steps.tolist() == [2000 * i for i in range(1, 13)]


def test_bar_with_a_postfix_is_read_once_a_step(tmp_path: Path) -> None:
    text = "".join(
        f"\rSteps:  {i}%|#    | {i}/100 [00:{i:02d}<01:00,  1.2it/s, lr=1e-5, step_loss={shown}]"
        for i, (before, a) in enumerate(zip([9.9, *LOSSES], LOSSES, strict=False), 1)
        for shown in (before, a, a)
    )
    run = run_of(tmp_path, text + "\n")
    assert run.series[LOSS].values.tolist() == LOSSES
    assert run.series[LOSS].steps.tolist() == list(STEPS)


def test_no_step_at_all(tmp_path: Path) -> None:
    run = run_of(tmp_path, "".join(f"loss: {a}\n" for a in LOSSES), Wanted(loss="loss"))
    assert not run.steps_known
    assert run.series[LOSS].values.tolist() == LOSSES


@pytest.mark.parametrize("mark", ["[rank{r}]: ", "{r}: ", "(Worker pid={r}) ", "[1,{r}]<stdout>: ", "rank {r}: ", "[default{r}]:"])
def test_of_several_ranks_the_first(mark: str, tmp_path: Path) -> None:
    text = "".join(f"{mark.format(r=r)}step {i} loss {a + r:.3f}\n" for i, a in zip(STEPS, LOSSES, strict=True) for r in (0, 1, 12))
    run = run_of(tmp_path, text)
    assert run.series[LOSS].values.tolist() == LOSSES
    assert any("several processes" in note for note in run.notes)


def test_a_number_before_a_colon_may_be_the_step(tmp_path: Path) -> None:
    run = run_of(tmp_path, "".join(f"{i}: loss {a}\n" for i, a in zip(STEPS, LOSSES, strict=True)))
    assert run.series[LOSS].steps.tolist() == list(STEPS)


# Broken and hostile text --------------------------------------------------------------------------------------------------


def test_a_number_cut_off_is_not_a_value(tmp_path: Path) -> None:
    text = "".join(f"step {i} loss {a:.3f} grad_norm 12.{i}50\n" for i, a in zip(STEPS, LOSSES, strict=True))
    for num_lost in (2, 3, 4):
        log = log_of(tmp_path, text[:-num_lost])
        assert len(log.columns["grad_norm"].values) == 7, num_lost
        assert log.columns["loss"].values.tolist() == LOSSES
        assert any("cut" in note for note in log.notes)
    assert len(log_of(tmp_path, text[:-1]).columns["grad_norm"].values) == 8


@given(cut=st.integers(0, len(PLAIN)))
@settings(max_examples=60, deadline=None)
def test_a_text_cut_anywhere_yields_right_values_only(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        log = log_of(tmp_path_factory.mktemp("cut"), PLAIN[:cut] or " ")
    except GradclipError:
        return
    for key, whole in (("loss", LOSSES), ("grad norm", [0.5] * 8), ("lr", [1e-4] * 8)):
        if key in log.columns:
            got = log.columns[key].values.tolist()
            assert got == whole[: len(got)]


@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from(["loss ", "loss=", "1 ", "9" * 30, "\x1b[", "\r", "|", "'a': ", "nan", "[1/2]", "\0", "é", "\n"]),
            st.integers(1, 400),
        )
    )
)
@settings(max_examples=60, deadline=2000)
def test_noise_never_breaks_it(parts: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    noise = "".join(token * n for token, n in parts)
    log = log_of(tmp_path_factory.mktemp("noise"), noise + "\n" + PLAIN)
    assert log.columns["loss"].values[-8:].tolist() == LOSSES


@pytest.mark.parametrize(
    "token", ["|", "1", "loss ", "loss=1 ", "'loss': ", "step:1/1 ", "Epoch: [1][", "\x1b[0;", "iteration 3/ 10 | ", "(", "1,234,", "1/2 ["]
)
def test_long_lines_take_linear_time(token: str, tmp_path: Path) -> None:
    full = token * (MAX_LINE // len(token) - 2)
    text = "".join(chr(97 + i) + " " + full + "\n" for i in range(4)) + token * 1_000_000 + "\n" + PLAIN
    begin = time.process_time()
    log = log_of(tmp_path, text)
    assert time.process_time() - begin < 3
    assert log.columns["loss"].values[-8:].tolist() == LOSSES


# The engine ---------------------------------------------------------------------------------------------------------------


def test_every_line_of_a_large_log_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 40_000
    loss, norm, rate = np.exp(rng.normal(0, 3, n)), rng.lognormal(0, 0.5, n), rng.random(n) * 1e-3
    loss[::5000] = np.nan
    text = "".join(
        f"step {i} loss {a:.6f} grad_norm {b!r} lr {c:.3e}\n"
        for i, (a, b, c) in enumerate(zip(loss.tolist(), norm.tolist(), rate.tolist(), strict=True))
    )
    assert len(text) > 2 << 20
    log = log_of(tmp_path, text)
    assert log.columns["step"].values.tolist() == list(range(n))
    np.testing.assert_array_equal(log.columns["loss"].values, [float(f"{a:.6f}") for a in loss])
    np.testing.assert_allclose(log.columns["grad_norm"].values, norm, rtol=3e-16)
    np.testing.assert_array_equal(log.columns["lr"].values, [float(f"{c:.3e}") for c in rate])


def test_lines_are_sorted_by_layout() -> None:
    text = b"a 1\nb 2\n\na 3\na 10\nloss_1\nloss_2\nloss_1\nlast"
    lines = scan(text, lambda line: line if line != b"last" else None, lambda line: [5] if line.startswith(b"loss") else [])
    assert lines.layouts == [b"a 1", b"b 2", b"a 10", b"loss_1", b"loss_2"]
    assert lines.layout.tolist() == [0, 1, 0, 2, 3, 4, 3]
    assert lines.starts.tolist() == [0, 4, 9, 13, 18, 25, 32]


@given(
    st.one_of(
        st.floats(0, 1e25, allow_nan=False).map(repr),
        st.floats(1e-30, 1e6).map(lambda x: f"{x:.4f}"),
        st.floats(1e-30, 1e30).map(lambda x: f"{x:.6E}"),
        st.integers(0, 10**17).map(str),
        st.integers(0, 10**9).map(lambda x: f"{x:,}"),
        st.integers(1, 999).map(lambda x: f"{x}K"),
    ),
    st.sampled_from(["", "-", "+"]),
)
@settings(max_examples=300, deadline=None)
def test_numbers_by_column_are_those_of_the_parser(printed: str, sign: str) -> None:
    printed = sign + printed
    text = f"x {printed}\n".encode() * 20
    expected = numbers.parse(printed)
    assert expected is not None
    values = values_at(text, np.arange(20) * (len(printed) + 3) + 2, pattern_of(printed))
    np.testing.assert_allclose(values, [expected.value] * 20, rtol=3e-16)
