"""Lines that no framework owns: tables below a header, counters without a name, records over several lines; and text that is no log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import GRAD_NORM, LOSS
from gradclip_cli.readers.log import Wanted
from gradclip_cli.readers.text.layouts import MAX_LINE
from gradclip_cli.readers.text.tables import header_of, row_of
from tests.test_reader_text_formats import DATE, LOSSES, NORMS, ONE_BY_ONE, TENS, N, assert_series, epochs, lines, log_of, run_of

# Tables below a header -----------------------------------------------------------------------------------------------------

# name -> text, steps, whether it has a norm
TABLES: dict[str, tuple[str, list[int], bool]] = {
    "markdown": (
        "| step | loss | grad_norm |\n|------|:----:|---:|\n" + lines(lambda i, a, b, c: f"| {i} | {a} | {b} |"),
        ONE_BY_ONE,
        True,
    ),
    "markdown in bold, with times and totals": (
        "| **Epoch** | **Train Loss** | **Val Loss** | Time |\n|:--|--:|--:|--|\n"
        + lines(lambda i, a, b, c: f"| {i}/12 | {a} | 9.9 | 0:01:02 |"),
        ONE_BY_ONE,
        False,
    ),
    "blank cells": (
        "| step | loss | val_loss |\n|---|---|---|\n" + lines(lambda i, a, b, c: f"| {i} | {a} | {'9.9' if i % 4 == 0 else ''} |"),
        ONE_BY_ONE,
        False,
    ),
    "box": (
        "+------+-------+-----------+\n| step | loss  | grad_norm |\n+======+=======+===========+\n"
        + lines(lambda i, a, b, c: f"| {i:4d} | {a:.3f} | {b:9.4f} |", end="+------+-------+-----------+\n"),
        ONE_BY_ONE,
        True,
    ),
    "box-drawing characters": (
        "┏━━━━━━┳━━━━━━━┓\n┃ Step ┃ Loss  ┃\n┡━━━━━━╇━━━━━━━┩\n"
        + lines(lambda i, a, b, c: f"│ {i:4d} │ {a:.3f} │", end="└──────┴───────┘\n"),
        ONE_BY_ONE,
        False,
    ),
    "aligned": ("step  loss  grad_norm\n" + lines(lambda i, a, b, c: f"{i:5d}  {a:.4f}  {b:.4f}"), ONE_BY_ONE, True),
    "single blanks": ("# step loss grad_norm\n" + lines(lambda i, a, b, c: f"{i * 10} {a} {b}"), TENS, True),
    "fastai": (
        "epoch     train_loss  valid_loss  accuracy  time    \n"
        + lines(lambda i, a, b, c: f"{i:<9d} {a:<11.6f} {9.9:<11.6f} {0.5:<9f} 00:12     "),
        ONE_BY_ONE,
        False,
    ),
    "skorch": (
        "  epoch    train_loss    valid_acc    valid_loss     dur\n-------  ------------  -----------  ------------  ------\n"
        + lines(
            lambda i, a, b, c: f"{i:7d}        \x1b[36m{a:.4f}\x1b[0m       \x1b[32m0.5150\x1b[0m        \x1b[35m9.6825\x1b[0m  0.0436"
        ),
        ONE_BY_ONE,
        False,
    ),
    "the Trainer in a notebook": (
        "Some output\n\n Step    Training Loss    Validation Loss\n 5    No log    9.9\n"
        + lines(lambda i, a, b, c: f" {i * 10}    {a:.6f}    9.567800"),
        TENS,
        False,
    ),
    "dashes where nothing was measured": (
        "step   train_loss   eval_loss\n" + lines(lambda i, a, b, c: f"{i:4d}   {a:10.4f}   {'9.9' if i % 4 == 0 else '-':>9s}"),
        ONE_BY_ONE,
        False,
    ),
    "header repeated": (
        lines(lambda i, a, b, c: ("\nstep  loss  grad_norm\n" if i % 4 == 1 else "") + f"{i:4d}  {a:.4f}  {b:.4f}"),
        ONE_BY_ONE,
        True,
    ),
    "another table behind": (
        "step  loss  grad_norm\n"
        + lines(lambda i, a, b, c: f"{i:5d}  {a:.4f}  {b:.4f}")
        + "\nstep  val_loss  val_acc\n"
        + lines(lambda i, a, b, c: f"{i:5d}  9.9000  0.5000")
        + "\nepoch  images  seconds\n"
        + lines(lambda i, a, b, c: f"{i:5d}  9  0.5000"),
        ONE_BY_ONE,
        True,
    ),
    "other lines between": (
        "the loss of each step with its norm\nstep  loss  grad_norm\n"
        + lines(
            lambda i, a, b, c: (
                f"{i:5d}  {a:.4f}  {b:.4f}\r 10%|#  | {i}/100 [00:10<00:20, 1.0it/s]\nINFO saving step {i}\n[1, 2, 3]\n0.5 0.3 0.2\n5 files written\n"
                "step a b c"
            )
        ),
        ONE_BY_ONE,
        True,
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_below_a_header(name: str, tmp_path: Path) -> None:
    assert_series(run_of(tmp_path, TABLES[name][0]), *TABLES[name][1:])


def test_numbers_of_a_table_in_full_and_nonfinite(tmp_path: Path) -> None:
    losses, norms = [a + 1 / 3 for a in LOSSES], [b + 1 / 7 for b in NORMS]
    text = "step loss grad_norm\n" + "".join(f"{i} {a!r} {b!r}\n" for i, (a, b) in enumerate(zip(losses, norms, strict=True), 1))
    run = run_of(tmp_path, text + "13 nan inf\n14 NaN -inf\n")
    assert run.series[LOSS].values[:N].tolist() == losses
    assert run.series[GRAD_NORM].values[:N].tolist() == norms
    assert [str(v) for v in run.series[LOSS].values[N:]] == ["nan", "nan"]
    assert run.series[GRAD_NORM].values[N:].tolist() == [float("inf"), float("-inf")]


def test_a_table_cut_anywhere_yields_right_values_only(tmp_path: Path) -> None:
    text = TABLES["aligned"][0]
    for cut in range(len(text) - 60, len(text)):
        columns = log_of(tmp_path, text[:cut]).columns
        for key, whole in (("step", ONE_BY_ONE), ("loss", LOSSES), ("grad_norm", NORMS)):
            assert columns[key].values.tolist() == whole[: len(columns[key].values)]
        assert len(columns["loss"].values) >= N - 4


def test_a_column_of_a_table_that_was_asked_for(tmp_path: Path) -> None:
    text = "tick  reward  size\n" + lines(lambda i, a, b, c: f"{i:4d}  {a:6.4f}  {b:.4f}")
    run = run_of(tmp_path, text, Wanted(loss="reward", grad_norm="size", step="tick"))
    assert run.series[LOSS].values.tolist() == LOSSES
    assert run.series[GRAD_NORM].values.tolist() == NORMS
    assert run.series[LOSS].steps.tolist() == ONE_BY_ONE


def test_what_a_header_and_a_row_are() -> None:
    assert header_of("| step | train loss |") == (("step", "train loss"),)
    assert header_of("Step  Training Loss") == (("Step", "Training Loss"), ("Step", "Training", "Loss"))
    assert header_of("the loss: of 3") == ()
    row = row_of("|   10/99 | 2.5G | 1.2e-3 | 0:01:02 |  | nan |")
    assert row is not None
    assert row.num_cells == 6
    assert {key: (field.start, field.pattern) for key, field in row.fields.items()} == {
        "<0>": (4, b"00"),
        "<1>": (12, b"0.0"),
        "<2>": (19, b"0.0e-0"),
        "<5>": (41, b"nan"),
    }
    assert row_of("12 files of 3") is None
    assert row_of("12  -  -") is None


# Counters without a name ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "[{i:5d}/300] train loss = {a}, gradient norm = {b}",
        "({i}/300) loss {a} norm {b}",
        "{i}/300 loss = {a} norm {b}",
        "{i}/300 [====>.....] loss = {a} norm {b}",
        "{date} - INFO - [{i}/300] loss: {a} grad norm: {b}",
        "01/02 03:04:05 INFO [{i}/300] loss: {a} grad norm: {b}",
        "Iter {i}/300 loss = {a} norm {b}",
        "Batch {i} of 300, loss = {a}, norm {b}",
        "it {i}: loss = {a} norm {b}",
        "[{i}] loss = {a} norm {b}",
        "I0102 03:04:05.123456 1400 train.py:48] [{i}] loss={a}, grad_norm={b}",
        "#{i} loss = {a} norm {b}",
        "{i} | loss = {a} | norm {b}",
    ],
)
def test_a_counter_in_brackets_is_the_step(line: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, lines(lambda i, a, b, c: line.format(i=10 * i, a=a, b=b, date=DATE)))
    assert run.series[LOSS].values.tolist() == LOSSES
    assert run.series[LOSS].steps.tolist() == TENS
    assert run.series[GRAD_NORM].values.tolist() == NORMS


@pytest.mark.parametrize(
    ("line", "heading"),
    [
        ("Epoch {e} [{k}/6] loss: {a}", ""),
        ("Epoch {e}/2: ({k}/6) loss: {a}", ""),
        ("[{k}/6] loss: {a}", "Epoch {e}/2"),
        ("[{e}/2][{k}/6] loss: {a}", ""),
    ],
)
def test_a_counter_that_begins_anew_in_each_epoch(line: str, heading: str, tmp_path: Path) -> None:
    def of(e: int, i: int, a: float, b: float, c: float) -> str:
        return (heading.format(e=e) + "\n" if heading and i == 0 else "") + line.format(e=e, k=i + 1, a=a)

    run = run_of(tmp_path, epochs(of))
    assert run.series[LOSS].values.tolist() == LOSSES
    assert run.series[LOSS].steps.tolist() == ONE_BY_ONE
    assert any("6 to an epoch" in note for note in run.notes)


@pytest.mark.parametrize(
    "line", ["[1234] loss = {a}", "(0/8) loss = {a}", "[{r}/2] loss = {a}", "{time} loss = {a}", "step 5 of 9: loss = {a}"]
)
def test_a_number_that_does_not_count_is_no_step(line: str, tmp_path: Path) -> None:
    log = log_of(tmp_path, lines(lambda i, a, b, c: line.format(a=a, r=i % 2, time=1700000000 + i)))
    assert log.step_key is None
    assert log.columns["loss"].values.tolist() == LOSSES


def test_an_epoch_beside_a_constant_counter(tmp_path: Path) -> None:
    run = run_of(tmp_path, lines(lambda i, a, b, c: f"(0/8) Epoch {i}, loss {a}"))
    assert run.series[LOSS].steps.tolist() == ONE_BY_ONE


def test_a_duration_called_step_is_no_step(tmp_path: Path) -> None:
    log = log_of(tmp_path, lines(lambda i, a, b, c: f"Step: {60 + i}ms | Tot: 6s | Loss: {a} | Acc: 31.2%"))
    assert log.step_key is None
    assert log.columns["Loss"].values.tolist() == LOSSES


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("Training loss (for one batch) at step {n}: {a}\nSeen so far: {n} samples\nValidation loss at step {n}: 9.9", TENS),
        ("Average loss at step {n} : {a}", TENS),
        ("loss after epoch {i} = {a}", ONE_BY_ONE),
    ],
)
def test_the_loss_at_a_step(line: str, steps: list[int], tmp_path: Path) -> None:
    run = run_of(tmp_path, lines(lambda i, a, b, c: line.format(i=i, n=10 * i, a=a)))
    assert run.series[LOSS].values.tolist() == LOSSES
    assert run.series[LOSS].steps.tolist() == steps


# Records over several lines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        "{{'accuracy': 0.1,\n 'gradient_norm': {b},\n 'loss': {a},\n 'step': {n}}}",
        'metrics: {{\n    "loss": {a},\n    "grad_norm": {b},\n    "step": {n}\n}}',
        "loss: {a}\ngrad norm: {b}\nfinished step {n}",
        "Step {n}\n  loss: {a}\n  grad norm: {b}",
    ],
)
def test_the_step_of_a_record_wherever_it_stands(record: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, lines(lambda i, a, b, c: record.format(a=a, b=b, n=10 * i)))
    assert run.series[LOSS].steps.tolist() == TENS
    assert run.series[LOSS].values.tolist() == LOSSES
    assert run.series[GRAD_NORM].steps.tolist() == TENS
    assert run.series[GRAD_NORM].values.tolist() == NORMS


# Several processes that do not say which they are ----------------------------------------------------------------------------


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8, 16])
def test_each_step_by_each_rank(num_ranks: int, tmp_path: Path) -> None:
    text = lines(lambda i, a, b, c: "\n".join(f"step {i} loss {a + r / 100:.4f} gnorm {b}" for r in range(num_ranks)))
    run = run_of(tmp_path, text)
    assert run.series[LOSS].steps.tolist() == ONE_BY_ONE
    assert run.series[LOSS].values.tolist() == LOSSES
    assert run.series[GRAD_NORM].values.tolist() == NORMS
    assert any("several writers" in note for note in run.notes)


# What is no log of a training ------------------------------------------------------------------------------------------------


def times(line: Callable[[int], str], n: int = 30) -> str:
    return "".join(line(i) + "\n" for i in range(n))


QUIET = {
    "web access": times(
        lambda i: f'10.0.0.{i} - - [02/Jan/2025:03:04:{i:02d} +0000] "GET /step/{i}?step={i}&loss=0.{i}&lr=0.1 HTTP/1.1" 200 {i}'
    ),
    "syslog": times(lambda i: f"Jan  2 03:04:{i:02d} host kernel: [{100 + i}.{i:06d}] eth0: packet loss {i % 3}% step {i} batch {i}"),
    "cron": times(lambda i: f"Jan  2 03:04:{i:02d} host CRON[{1234 + i}]: (root) CMD (run-parts /etc/cron.hourly)"),
    "ping": times(lambda i: f"10 packets transmitted, {10 - i % 3} received, {i % 3 * 10}% packet loss, time 90{i}ms"),
    "pytest": times(lambda i: f"tests/test_loss.py::test_step[{i}-0.{i}] PASSED   [{i + 1}/30]") + "=== 30 passed in 1.23s ===\n",
    "C source": times(lambda i: f"  float loss = {i}.0f; int step = {i}; /* step {i} */\n#define STEP_{i} {i}"),
    "Python source": "import torch\nfor step in range(1000):\n    loss = 0.0\n    if step % 100 == 0:\n        print(f'step {step} loss {loss}')\nlr = 0.1\n"
    * 3,
    "prose": "We train for 100 epochs with lr 0.001. The loss drops from 2.3 to 0.5 after step 1000.\nAt step 5000 the loss is 0.3 and the norm 1.2.\n",
    "a table of models": "# Results\n| model | loss | norm |\n|---|---|---|\n" + times(lambda i: f"| net{i} | 2.{i} | 0.{i} |"),
    "YAML": "train:\n  lr: 0.001\n  steps: 1000\n  loss:\n    weight: 1.0\n  loss_scale: 1024\n  max_grad_norm: 1.0\n  loss_weight: 0.5\n",
    "YAML list": times(lambda i: f"- name: run{i}\n  lr: 0.{i + 1}\n  step: {i}\n  loss: mse\n  loss_weight: {i}.0"),
    "JSON configuration": '{\n  "lr": 0.1,\n  "loss": 1.0,\n  "step": 10,\n  "grad_norm": 1.0\n}\nstart\n',
    "arguments": "Namespace(lr=0.1, loss=1.0, step=10, grad_norm=1.0)\nlearning_rate: 0.1\nloss_scale: 1024\nclip_norm: 1.0\nloss: 1\n",
    "usage": "  --loss LOSS  the loss (default: 1.0)\n  --steps 100  number of steps\n  --lr 0.1  learning rate\n  --clip-norm 1.0 clip\n",
    "pip": times(lambda i: f"Collecting torch=={i}.0.1\n     ━━━━━━━━━━━━━━━━━━━━━━━━ {i + 1}.2/900.1 MB 10.{i} MB/s eta 0:00:{i:02d}"),
    "download": "\r".join(f"Downloading: {i * 3}%|###   | {i}/30 [00:10<00:20,  5.0it/s]" for i in range(30)) + "\n",
    "nvidia-smi": times(
        lambda i: (
            "+-------------------------------+------------------------+----------------------+\n"
            "| GPU  Name                     | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
            "|===============================+========================+======================|\n"
            "|   0  NVIDIA H100          On  |   00000000:19:00.0 Off |                    0 |\n"
            f"| N/A   3{i % 10}C    P0   119W /  700W |    123MiB /  81559MiB |      {i}%      Default |"
        ),
        5,
    ),
    "benchmark by name": "name            time    loss\n" + times(lambda i: f"kernel_{i}      {i}.5    0.{i}"),
    "benchmark by size": "batch_size  time_ms  loss\n" + times(lambda i: f"{2**i}  {i}.5  0.{i + 10}", 12),
    "sweep": "lr      loss    norm\n" + times(lambda i: f"0.{i + 1:03d}   2.{i}   0.{i}", 12),
    "a header without rows": "step  loss  norm\nsome words\n" * 5 + "x" * 700 + "\n" + times(lambda i: f"{i}  0.{i}  1.{i}"),
    "a heading in prose": "During each step the loss and norm\n" + times(lambda i: f"{i} 0.{i} 1.{i} 2 3 4 5"),
    "numbers": times(lambda i: f"{i} 0.{i} 1.{i}"),
    "a model's layers": times(
        lambda i: f"layer_norm_{i} (LayerNorm)  (None, {i}, 768)   {1536 + i}\n  (norm{i}): LayerNorm((768,), eps=1e-05)"
    ),
    "profiler": "Name    Self CPU %   CPU total\n"
    + times(lambda i: f"aten::norm    {i}.12%   {i}.123ms   {i}\naten::nll_loss   {i}.2%  {i}.1us   {i}"),
    "docker build": times(lambda i: f"Step {i + 1}/30 : RUN pip install loss=={i}\n ---> 0123456789ab"),
    "ninja": times(lambda i: f"[{i + 1}/30] c++ -O2 -c loss{i}.cpp -o norm_{i}.o"),
    "git log": times(lambda i: f"commit {i:040x}\nDate:   Thu Jan 2 03:04:{i:02d} 2025\n\n    Fix loss at step {i}, see norm (#{i})"),
    "trades": times(lambda i: f"2025-01-{i + 1:02d} stop loss: {100 + i}.5 profit/loss: {i * 1.5:.2f} batch {i}"),
    "solver": times(lambda i: f"Iteration {i}: objective = {100 / (i + 1):.4f}, step size = 0.{i + 1}"),
    "top": "  PID USER   %CPU  %MEM   TIME+ COMMAND\n" + times(lambda i: f" {1000 + i} root   {i}.0   0.1   0:00.{i:02d} python step loss"),
    "controller": times(lambda i: f"I0102 03:04:05.{i:06d} 1 controller.go:{i}] reconciling batch {i} step {i} lease loss 0"),
    "steps of a list": times(lambda i: f"{i}. Compute loss {i}"),
    "evaluation alone": times(lambda i: f"Validation step {i} val_loss 0.{i}"),
}


@pytest.mark.parametrize("name", QUIET)
def test_text_that_is_no_log(name: str, tmp_path: Path) -> None:
    with pytest.raises(GradclipError) as e:
        run_of(tmp_path, QUIET[name])
    assert e.value.hint


@pytest.mark.parametrize(
    "token",
    [
        "[1/2] eta: ",
        "steps: [",
        "Epoch 1/2 ━",
        "Progress on:1it/2 rate: postfix:",
        "12/300 ",
        "1  ",
        "| 1 ",
        "loss (a) at step 1 ",
        "step  loss  ",
    ],
)
def test_long_lines_of_new_shapes_take_linear_time(token: str, tmp_path: Path) -> None:
    full = token * (MAX_LINE // len(token.encode()) - 2)
    text = TABLES["aligned"][0] + "".join(chr(97 + i) * i + full + "loss 1.5\n" for i in range(6)) + TABLES["aligned"][0]
    begin = time.process_time()
    log_of(tmp_path, text)
    assert time.process_time() - begin < 3
