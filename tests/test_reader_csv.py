"""CSV in the dialects of trainers, loggers and exports; both ways of reading give the same log."""

from __future__ import annotations

import gzip
import math
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from gradclip_cli.errors import GradclipError
from gradclip_cli.readers import frame
from gradclip_cli.readers.csv import READER
from gradclip_cli.readers.log import Log, Wanted
from gradclip_cli.readers.open import open_source
from tests.conftest import ROOT

NAN, INF = math.nan, math.inf


def claimed(path: Path, content: str | bytes, name: str = "log.csv") -> bool:
    (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return READER.claims(open_source(path / name))


def read(path: Path, content: str | bytes, wanted: Wanted | None = None, name: str = "log.csv") -> Log:
    assert claimed(path, content, name)
    return READER.read(open_source(path / name), wanted or Wanted())


def cells(log: Log) -> dict[str, list[tuple[int, float]]]:
    return {k: list(zip(c.at.tolist(), c.values.tolist(), strict=True)) for k, c in log.columns.items()}


def values(log: Log, key: str) -> list[float]:
    return log.columns[key].values.tolist()


def same(a: Log, b: Log) -> bool:
    assert list(a.columns) == list(b.columns)
    for key, column in a.columns.items():
        np.testing.assert_array_equal(column.at, b.columns[key].at)
        np.testing.assert_array_equal(column.values, b.columns[key].values)
        assert column.at.dtype == np.int64
        assert column.values.dtype == np.float64
    assert (a.damage, a.notes) == (b.damage, b.notes)
    return True


def test_blank_is_absent_and_nan_is_data(tmp_path: Path) -> None:
    log = read(tmp_path, "step,loss,grad_norm\n0,3.5,\n10,,1.25\n20,nan,-inf\n30,  ,Infinity\n")
    assert cells(log)["loss"][0] == (0, 3.5)
    assert [at for at, _ in cells(log)["loss"]] == [0, 2]
    assert math.isnan(values(log, "loss")[1])
    assert cells(log)["grad_norm"] == [(1, 1.25), (2, -INF), (3, INF)]
    assert values(log, "step") == [0, 10, 20, 30]


@pytest.mark.parametrize("spelling", ["nan", "NaN", "NAN", "-nan", "nan.0", "1.#QNAN", "-nan(ind)"])
def test_nan_in_any_spelling(tmp_path: Path, spelling: str) -> None:
    log = read(tmp_path, f"step,loss\n1,2.5\n2,{spelling}\n3,2.25\n")
    assert len(values(log, "loss")) == 3
    assert math.isnan(values(log, "loss")[1])


@pytest.mark.parametrize("cell", ["", "null", "None", "N/A", "NA", "<NA>", "-"])
def test_what_is_no_number_is_absent(tmp_path: Path, cell: str) -> None:
    log = read(tmp_path, f"step,loss\n1,2.5\n2,{cell}\n3,2.25\n")
    assert cells(log)["loss"] == [(0, 2.5), (2, 2.25)]
    assert (log.damage, log.notes) == ((), ())


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("tensor(nan)", NAN),
        ("\"tensor(2.5, device='cuda:0', grad_fn=<NllLossBackward0>)\"", 2.5),
        ("tensor([2.5])", 2.5),
        ("np.float32(-inf)", -INF),
        ('"array(2.5, dtype=float32)"', 2.5),
        ("∞", INF),
        ("-∞", -INF),
        ("#NUM!", NAN),
    ],
)
def test_numbers_as_other_programs_print_them(tmp_path: Path, cell: str, value: float) -> None:
    log = read(tmp_path, f"step,loss\n1,2.5\n2,{cell}\n3,2.25\n")
    np.testing.assert_array_equal(values(log, "loss"), [2.5, value, 2.25])
    assert (log.damage, log.notes) == ((), ())


def test_text_among_the_numbers_is_told(tmp_path: Path) -> None:
    rows = "".join(f"{i},{2.5 if i < 200 else 'overflow'},{0.5 if i != 7 else '****'},{'x' if i < 3 else 0.1}\n" for i in range(300))
    log = read(tmp_path, "step,loss,grad_norm,lr\n" + rows)
    assert len(values(log, "loss")) == 200
    assert log.notes == (
        "'loss' holds text in 100 rows from row 201 on, such as 'overflow': not read",
        "'grad_norm' holds text in 1 row from row 8 on, such as '****': not read",
        "'lr' holds text in 3 rows from row 1 on, such as 'x': not read",
    )
    assert [(d.where, d.what) for d in log.damage] == [
        ("row 201", "from here on 'loss' is text in 100 rows, such as 'overflow', expected numbers"),
        ("row 8", "from here on 'grad_norm' is text in 1 row, such as '****', expected numbers"),
    ]


def test_text_above_the_first_number_is_no_damage(tmp_path: Path) -> None:
    log = read(tmp_path, "step,loss\n#,nats\n,(mean)\n" + "".join(f"{i},2.5\n" for i in range(20)))
    assert log.damage == ()
    assert log.notes == ("'loss' holds text in 1 row from row 1 on, such as '(mean)': not read",)


def test_text_in_rows_of_an_evaluation_does_not_count(tmp_path: Path) -> None:
    log = read(tmp_path, "phase,step,loss\ntrain,1,2.5\nval,1,skipped\ntrain,2,2.25\n")
    assert (log.damage, log.notes) == ((), ("1 rows that say they are of an evaluation were left out",))


def test_a_column_without_numbers_is_told(tmp_path: Path) -> None:
    log = read(tmp_path, "step,loss,comment\n0,,a\n1,abc,b\n2,abd,c\n")
    assert log.empty == {"loss": "holds no numbers, such as 'abc' in row 2"}
    assert read(tmp_path, "step,loss,lr\n0,,0.1\n1,,0.1\n2,,0.1\n").empty == {"loss": "has no value in any row"}


@pytest.mark.parametrize("blank", ["", "None", "N/A"])
def test_a_loss_that_ends_early_is_told(tmp_path: Path, blank: str) -> None:
    rows = "".join(f"{10 * i},{2.5 if i < 40 else blank},0.5\n" for i in range(50))
    log = read(tmp_path, "step,loss,grad_norm\n" + rows)
    assert log.notes == ()
    assert [(d.where, d.what) for d in log.damage] == [
        ("row 41 ('step' 400)", "from here on 'loss' is blank, while the log goes on for 10 rows")
    ]
    log = read(tmp_path, "loss,grad_norm\n" + "".join(f"{2.5 if i < 40 else blank},0.5\n" for i in range(50)))
    assert [d.where for d in log.damage] == ["row 41"]


def test_a_pace_of_its_own_or_rows_of_another_kind_are_no_early_end(tmp_path: Path) -> None:
    each_tenth = "".join(f"{i},{2.5 if i % 10 == 0 else ''},0.5\n" for i in range(500))
    assert read(tmp_path, "step,loss,grad_norm\n" + each_tenth).notes == ()
    evaluations = "".join(f"{i},2.5,\n" for i in range(200)) + "199,,3.5\n" * 8
    assert read(tmp_path, "step,loss,val_loss\n" + evaluations).notes == ()
    two_missing = "".join(f"{i},{2.5 if i < 198 else ''},0.5\n" for i in range(200))
    assert read(tmp_path, "step,loss,grad_norm\n" + two_missing).notes == ()


@pytest.mark.parametrize("place", ["between the lines", "within a line", "at the end", "many"])
def test_zero_bytes_cost_their_line(tmp_path: Path, place: str) -> None:
    good = [f"{i},2.5,0.5".encode() for i in range(200)]
    zeros = b"\0" * 4096
    if place == "between the lines":
        content, lost = b"\n".join([*good[:50], zeros + good[50], *good[51:]]), [50]
    elif place == "within a line":
        content, lost = b"\n".join([*good[:50], b"5" + zeros + b"9,2.5,0.5", *good[51:]]), [50]
    elif place == "at the end":
        content, lost = b"\n".join([*good, zeros]), []
    else:
        content, lost = b"\n".join(line if i % 20 or not i else b"\0" + line[1:] for i, line in enumerate(good)), list(range(20, 200, 20))
    log = read(tmp_path, b"step,loss,grad_norm\n" + content)
    assert values(log, "step") == [i for i in range(200) if i not in lost]
    assert log.damage[0].where == f"line {2 + (lost[0] if lost else 200)}"
    assert "zero bytes" in log.damage[0].what
    assert len(log.damage) == (1 if place != "many" else 6)


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_delimiters_and_line_ends(tmp_path: Path, delimiter: str, end: str) -> None:
    lines = ["epoch,step,train_loss,lr", "0,49,7.62,1e-3", "0,99,7.52,1E-03", "1,149,7.36,.001"]
    log = read(tmp_path, end.join(lines).replace(",", delimiter) + end)
    assert values(log, "step") == [49, 99, 149]
    assert values(log, "train_loss") == [7.62, 7.52, 7.36]
    assert values(log, "lr") == [1e-3, 1e-3, 1e-3]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    log = read(tmp_path, "step,loss\n1,2.5\n2,2.25\n".encode(encoding))
    assert values(log, "loss") == [2.5, 2.25]
    assert list(log.columns) == ["step", "loss"]


def test_gzip(tmp_path: Path) -> None:
    log = read(tmp_path, gzip.compress(b"step,loss\n1,2.5\n2,2.25\n"), name="log.csv.gz")
    assert values(log, "loss") == [2.5, 2.25]


def test_quoted_cells_and_derived_twins(tmp_path: Path) -> None:
    content = '"Step","my run - loss","my run - loss__MIN","my run - loss__MAX"\n"4","12.5","12.5","12.5"\n"52","9.25","9.0","9.5"'
    log = read(tmp_path, content)
    assert values(log, "my run - loss") == [12.5, 9.25]
    assert values(log, "Step") == [4, 52]
    assert log.damage == ()


def test_quotes_hide_delimiters_and_thousands(tmp_path: Path) -> None:
    log = read(tmp_path, 'step,comment,loss\n"1,000","a, b",2.5\n"2,000","he said ""no"", twice",2.25\n')
    assert values(log, "step") == [1000, 2000]
    assert values(log, "loss") == [2.5, 2.25]


def test_a_quoted_cell_over_several_lines(tmp_path: Path) -> None:
    log = read(tmp_path, 'step,sample,loss\n1,"one\ntwo",2.5\n2,"three",2.25\n')
    assert cells(log)["loss"] == [(0, 2.5), (1, 2.25)]
    assert log.damage == ()


def test_an_unclosed_quote_costs_its_row_only(tmp_path: Path) -> None:
    rows = "".join(f"{i},x,{3 - i / 100}\n" for i in range(100))
    log = read(tmp_path, "step,note,loss\n" + rows.replace("50,x,", '50,"x,'))
    assert len(values(log, "loss")) == 99
    assert [d.where for d in log.damage] == ["line 52"]


def test_padded_header_and_cells(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        "   epoch, train/box_loss,  val/loss,   x/lr0\n       0,        0.0865,    0.0835, 0.00188\n       1, 0.0765, 0.0735, 0.00378\n",
    )
    assert values(log, "epoch") == [0, 1]
    assert values(log, "train/box_loss") == [0.0865, 0.0765]
    assert values(log, "x/lr0") == [0.00188, 0.00378]


def test_decimal_comma(tmp_path: Path) -> None:
    log = read(tmp_path, "step;loss;lr\n1;2,5;1e-3\n2;0,125;1e-3\n".replace("1e-3", "0,001"))
    assert values(log, "loss") == [2.5, 0.125]
    assert any("decimal comma" in n for n in log.notes)


def test_decimal_comma_with_dots_between_thousands(tmp_path: Path) -> None:
    log = read(tmp_path, "step;loss;tokens_loss\n999;5.001,89;2,5\n1.000;12,25;1.234.567,5\n1.001;-1.000;0,5\n")
    assert values(log, "step") == [999, 1000, 1001]
    assert values(log, "loss") == [5001.89, 12.25, -1000]
    assert values(log, "tokens_loss") == [2.5, 1234567.5, 0.5]
    # A point that stands for no thousands: these are not of one kind.
    assert not any("decimal comma" in n for n in read(tmp_path, "step;loss;lr\n1;5.001,89;0.25\n2;4.001,89;0.25\n").notes)


def test_semicolons_with_decimal_points(tmp_path: Path) -> None:
    assert values(read(tmp_path, "step;loss\n1;2.5\n2;0.125\n"), "loss") == [2.5, 0.125]


@pytest.mark.parametrize("first", ["# made by hand", "#{'seed': 1}", "sep=,"])
def test_comments(tmp_path: Path, first: str) -> None:
    log = read(tmp_path, f"{first}\nstep,loss\n1,2.5\n# resumed\n2,2.25\n\n3,2.0\n")
    assert cells(log)["loss"] == [(0, 2.5), (1, 2.25), (2, 2.0)]


def test_a_header_in_a_comment(tmp_path: Path) -> None:
    log = read(tmp_path, "# step,loss,grad_norm\n1,2.5,0.5\n2,2.25,0.75\n")
    assert values(log, "loss") == [2.5, 2.25]
    assert values(log, "grad_norm") == [0.5, 0.75]


def test_an_appended_run(tmp_path: Path) -> None:
    log = read(tmp_path, "step,loss\n1,2.5\n2,2.25\nstep,loss\n1,3.5\n2,3.25\n")
    assert values(log, "step") == [1, 2, 1, 2]
    assert cells(log)["loss"] == [(0, 2.5), (1, 2.25), (2, 3.5), (3, 3.25)]
    assert any("2 times" in n for n in log.notes)


def test_an_appended_run_with_other_columns(tmp_path: Path) -> None:
    log = read(tmp_path, "step,loss,grad_norm\n1,2.5,0.5\n2,2.25,0.25\nstep,time,grad_norm,loss\n1,99,0.75,3.5\n2,99,0.125,3.25\n")
    assert values(log, "loss") == [2.5, 2.25, 3.5, 3.25]
    assert values(log, "grad_norm") == [0.5, 0.25, 0.75, 0.125]


def test_a_cut_last_line_is_damage(tmp_path: Path) -> None:
    log = read(tmp_path, "step,loss,grad_norm\n1,2.5,0.5\n2,2.25,0.75\n3,2.")
    assert values(log, "loss") == [2.5, 2.25]
    (damage,) = log.damage
    assert damage.where == "line 4"
    assert "2 of 3 cells" in damage.what


def test_a_missing_last_line_end_is_none(tmp_path: Path) -> None:
    log = read(tmp_path, "step,loss\n1,2.5\n2,2.25")
    assert values(log, "loss") == [2.5, 2.25]
    assert log.damage == ()


def test_few_rows_of_another_width_are_damage(tmp_path: Path) -> None:
    good = [f"{i},{3 - i / 1000},0.5" for i in range(400)]
    good[100] = "100,2."
    good[200] = "200,2.9201,2.799,0.5"  # two writers in one line
    log = read(tmp_path, "step,loss,grad_norm\n" + "\n".join(good) + "\n")
    assert [d.where for d in log.damage] == ["line 102", "line 202"]
    assert len(values(log, "loss")) == 398
    # Rows keep their numbers.
    assert cells(log)["loss"][100] == (101, 2.899)


def test_many_rows_of_another_width_are_a_habit(tmp_path: Path) -> None:
    rows = "".join(f"{i},2.5,0.5,{i}\n" if i % 2 else f"{i},2.5\n" for i in range(20))
    log = read(tmp_path, "step,loss,grad_norm\n" + rows)
    assert values(log, "loss") == [2.5] * 20
    assert values(log, "step") == list(range(20))
    assert [at for at, _ in cells(log)["grad_norm"]] == list(range(1, 20, 2))
    assert any("from the left" in n for n in log.notes)


def test_a_delimiter_at_the_end_of_each_line(tmp_path: Path) -> None:
    for content in ("step,loss,\n1,2.5,\n2,2.25,\n", "step,loss\n1,2.5,\n2,2.25,\n"):
        log = read(tmp_path, content)
        assert values(log, "loss") == [2.5, 2.25]
        assert (log.damage, log.notes) == ((), ())


def test_names_that_repeat_or_are_missing(tmp_path: Path) -> None:
    log = read(tmp_path, ",loss,loss,\n0,2.5,3.5,7\n1,2.25,3.25,8\n", Wanted(step="column 1"))
    assert values(log, "column 1") == [0, 1]
    assert values(log, "loss") == [2.5, 2.25]
    assert values(log, "loss (2)") == [3.5, 3.25]
    assert any("more than once" in n for n in log.notes)


def test_one_column(tmp_path: Path) -> None:
    assert values(read(tmp_path, "loss\n2.5\n2.25\n2.0\n"), "loss") == [2.5, 2.25, 2.0]


def test_one_row(tmp_path: Path) -> None:
    assert cells(read(tmp_path, "step,loss\n1,2.5\n")) == {"step": [(0, 1.0)], "loss": [(0, 2.5)]}


@pytest.mark.parametrize("content", ["step,loss,grad_norm\n", "step,loss", "step,loss,grad_norm\n\n\n"])
def test_a_header_alone(tmp_path: Path, content: str) -> None:
    with pytest.raises(GradclipError, match="no rows"):
        read(tmp_path, content)


def test_only_columns_that_matter_are_read(tmp_path: Path) -> None:
    log = read(tmp_path, "step,loss,gpu_temperature,val_loss\n1,2.5,70,3\n2,2.25,71,3\n")
    assert list(log.columns) == ["step", "loss"]
    log = read(tmp_path, "step,loss,gpu_temperature\n1,2.5,70\n", Wanted(loss="gpu_temperature"))
    assert "gpu_temperature" in log.columns


def test_all_columns_are_read_where_none_fits(tmp_path: Path) -> None:
    assert list(read(tmp_path, "Wall time,Step,Value\n1.5e9,10,2.5\n1.5e9,20,2.25\n").columns) == ["Wall time", "Step", "Value"]
    log = read(tmp_path, "step,loss,reward\n1,2.5,3\n2,2.25,4\n", Wanted(grad_norm="reword"))
    assert list(log.columns) == ["step", "loss", "reward"]


def test_rows_of_an_evaluation_are_left_out(tmp_path: Path) -> None:
    content = "phase,step,loss\ntrain,1,2.5\nval,1,9.5\ntrain,2,2.25\nValidation,2,9.25\n"
    log = read(tmp_path, content)
    assert cells(log)["loss"] == [(0, 2.5), (2, 2.25)]
    assert log.notes == ("2 rows that say they are of an evaluation were left out",)
    # Where everything is called a test, that is a name.
    assert len(values(read(tmp_path, content.replace("train", "test").replace("Validation", "test")), "loss")) == 4


@pytest.mark.parametrize(
    "content",
    [
        "2021-05-25 06:38:10,754 - INFO - start\n2021-05-25 06:38:11,754 - INFO - step 1, loss 2.5\n2021-05-25 06:38:12,754 - INFO - ok\n",
        "step 1, loss 2.5, lr 0.1\nstep 2, loss 2.25, lr 0.1\nstep 3, loss 2.0, lr 0.1\n",
        "step:10/1000, tokens seen:0.59M, train_loss:10.0153 time:125ms\nstep:20/1000, tokens seen:1.2M, train_loss:9.0 time:125ms\n",
        "Epoch 0, Step 25, total time 7.17 (s), avg loss so far is 0.1\nEpoch 0, Step 50, total time 14.2 (s), avg loss so far is 0.09\n",
        "{'loss': 2.5, 'grad_norm': 1.0, 'epoch': 0.1}\n{'loss': 2.25, 'grad_norm': 1.5, 'epoch': 0.2}\n",
        '{"loss": 2.5, "step": 1}\n{"loss": 2.25, "step": 2}\n',
        '[{"stream_name":"stderr","time":7.2,"data":"a\\n"}\n,{"stream_name":"stdout","time":9.2,"data":"b\\n"}\n]',
        "1628697792090 332.68 0\n1628697795789 297.6 1\n",
        "1,2.5,3\n2,2.25,4\n",
        "import os, sys\nimport torch, numpy\n\nx = 1, 2\n",
        "| step | loss |\n| 1 | 2.5 |\n| 2 | 2.25 |\n",
        ', "loss": 2.5, "step": 70}, {"step": 71, "loss": 2.25, "lr": 0.1}',
        "iter,\nnothing here\nand more text\n",
        "step 1 loss: 2.0\n" * 20,
        "step 1 loss nothing\n",
        "step 1, loss nothing\n",
        "step 1, loss 2.5\n" * 20,
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 65536\n" * 20,
    ],
)
def test_other_texts_are_not_claimed(tmp_path: Path, content: str) -> None:
    assert not claimed(tmp_path, content)


# Large files ----------------------------------------------------------------------------------------------------------


def table(n: int) -> str:
    rng = np.random.default_rng(0)
    rows = zip(range(n), rng.normal(2, 1, n).tolist(), rng.lognormal(0, 3, n).tolist(), rng.random(n).tolist(), strict=True)
    lines = [f"{i},{a!r},{b:.6g},{'' if c < 0.3 else 'nan' if c < 0.31 else repr(c)},text {i}" for i, a, b, c in rows]
    return "step,loss,grad_norm,lr,note\n" + "\n".join(lines) + "\n"


LARGE = {
    "plain": lambda t: t,
    "crlf": lambda t: t.replace("\n", "\r\n"),
    "tabs": lambda t: t.replace(",", "\t"),
    "quoted": lambda t: t.replace("text", '"text').replace("\n", '"\n').replace('note"', "note"),
    "no last line end": lambda t: t[:-1],
    "cut last line": lambda t: t + "77,1.",
    "short row": lambda t: t.replace("\n700,", "\n700\n701,"),
    "long row": lambda t: t.replace("text 300", "text 300,9,9"),
    "blank line": lambda t: t.replace("text 300\n", "text 300\n\n"),
    "appended run": lambda t: t + t,
    "other spelling": lambda t: t.replace("nan", "1.#QNAN"),
    "padded": lambda t: t.replace(",", ", "),
    "comment": lambda t: "# first\n" + t.replace("text 300\n", "text 300\n# resumed, from, a, checkpoint, here\n"),
    "evaluations": lambda t: t.replace("note", "split").replace("text 1", "val 1"),
    "decimal comma": lambda t: t.replace(",", ";").replace(".", ","),
    "dots and commas": lambda t: t.replace(",", ";").replace(".", ",").replace("\n77;", "\n1.077;"),
    "text": lambda t: t + "2000,overflow,0.5,0.5,text\n" * 9,
    "no value at the end": lambda t: t + "".join(f"{i},,0.5,0.5,text\n" for i in range(2000, 2009)),
    "no value at the end, of an evaluation": lambda t: (
        t.replace("note", "split") + "".join(f"{i},,0.5,0.5,{'val' if i % 2 else 'train'}\n" for i in range(2000, 2009))
    ),
    "zero bytes": lambda t: t.replace("\n700,", "\n70" + "\0" * 5000),
}


@pytest.mark.parametrize("kind", LARGE)
def test_both_ways_of_reading_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    content = LARGE[kind](table(2000))
    small = read(tmp_path, content)
    assert len(small.columns["loss"].at) >= (1997 if kind != "evaluations" else 800)
    monkeypatch.setattr(frame, "LARGE_BYTES", 0)
    for piece in (len(content) - 5, 1 << 13, 1 << 30):
        monkeypatch.setattr(frame, "PIECE_BYTES", piece)
        assert same(read(tmp_path, content), small)


@pytest.mark.parametrize("kind", ["plain", "crlf", "tabs", "quoted", "no last line end", "cut last line", "decimal comma", "evaluations"])
def test_regular_tables_take_the_fast_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(frame, "LARGE_BYTES", 0)
    monkeypatch.setattr("gradclip_cli.readers.csv._collect", None)
    assert len(values(read(tmp_path, LARGE[kind](table(500))), "loss")) == (500 if kind != "evaluations" else 389)


def test_numbers_are_read_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
    content = "step,loss\n" + "".join(f"{i},{x!r}\n" for i, x in enumerate(numbers.tolist()))
    for limit in (1 << 40, 0):
        monkeypatch.setattr(frame, "LARGE_BYTES", limit)
        np.testing.assert_array_equal(read(tmp_path, content).columns["loss"].values, numbers)


def test_ten_thousand_columns(tmp_path: Path) -> None:
    header = ["step", "loss", *(f"grad_norm/layers.{i}.weight" for i in range(5000)), *(f"unrelated_{i}" for i in range(5000))]
    rows = "".join(f"{i},2.5," + ",".join(["0.125"] * 10_000) + "\n" for i in range(20))
    start = time.perf_counter()
    log = read(tmp_path, ",".join(header) + "\n" + rows)
    assert time.perf_counter() - start < 10
    assert len(log.columns) == 5002
    assert values(log, "grad_norm/layers.4999.weight") == [0.125] * 20


def test_one_line_without_end(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(b"step,loss\n" + b"1,2.5\n" * 5 + b"9," * (10 << 20) + b"\n" + b"2,2.25\n")
    tracemalloc.start()
    log = READER.read(open_source(tmp_path / "log.csv"), Wanted())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert values(log, "loss") == [2.5] * 5 + [2.25]
    assert [d.where for d in log.damage] == ["line 7"]
    assert peak < 10 * (20 << 20)
    (tmp_path / "log.csv").write_bytes(b"step,loss," * (1 << 20))
    with pytest.raises(GradclipError, match="first line"):
        READER.read(open_source(tmp_path / "log.csv"), Wanted())


@pytest.mark.parametrize("before", [b"", b"1,2.5\n" * 5])
def test_one_line_without_end_in_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("such a line takes polars hundreds of times its size")

    monkeypatch.setattr("polars.read_csv", never)
    (tmp_path / "log.csv").write_bytes(b"step,loss\n" + before + b"1," * (6 << 20))
    assert frame.is_large(open_source(tmp_path / "log.csv"))
    if before:
        log = READER.read(open_source(tmp_path / "log.csv"), Wanted())
        assert values(log, "loss") == [2.5] * 5
        assert [d.where for d in log.damage] == ["line 7"]
    else:
        with pytest.raises(GradclipError, match=r"no rows that can be read \(line 2: 12582912 characters"):
            READER.read(open_source(tmp_path / "log.csv"), Wanted())


def test_a_small_file_needs_the_standard_library_and_numpy_only(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,loss\n1,2.5\n2,2.25\n")
    code = """if True:
        import sys
        from pathlib import Path
        from gradclip_cli.readers.csv import READER
        from gradclip_cli.readers.log import Wanted
        from gradclip_cli.readers.open import open_source
        READER.read(open_source(Path("log.csv")), Wanted())
        print(sorted({"pandas", "polars", "pyarrow", "torch", "matplotlib"} & set(sys.modules)))
    """
    env = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
