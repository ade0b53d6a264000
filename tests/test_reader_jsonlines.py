"""JSON records in the ways trainers write them; both ways of reading give the same log."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import LOSS, NormStage, Sampling
from gradclip_cli.readers import frame
from gradclip_cli.readers.jsonlines import READER
from gradclip_cli.readers.log import Log, Wanted
from gradclip_cli.readers.open import open_source
from tests.test_reader_csv import cells, same, values

INF = math.inf


def claimed(path: Path, content: str | bytes, name: str = "log.jsonl") -> bool:
    (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return READER.claims(open_source(path / name))


def read(path: Path, content: str | bytes, wanted: Wanted | None = None) -> Log:
    assert claimed(path, content)
    return READER.read(open_source(path / "log.jsonl"), wanted or Wanted())


def lines(*records: object) -> str:
    return "".join(json.dumps(r) + "\n" for r in records)


def test_records_of_different_keys(tmp_path: Path) -> None:
    log = read(tmp_path, lines({"step": 1, "loss": 2.5}, {"step": 1, "val_loss": 3.0}, {"step": 2, "loss": 2.25, "lr": 1e-3}))
    assert cells(log)["step"] == [(0, 1.0), (1, 1.0), (2, 2.0)]
    assert cells(log)["loss"] == [(0, 2.5), (2, 2.25)]
    assert cells(log)["lr"] == [(2, 1e-3)]
    assert "val_loss" not in log.columns


def test_nan_is_data_null_is_absence(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        '{"step": 1, "loss": NaN, "grad_norm": Infinity}\n{"step": 2, "loss": null, "grad_norm": -Infinity}\n'
        '{"step": 3, "loss": "nan", "grad_norm": "2.5"}\n{"step": 4, "loss": nan, "grad_norm": -inf}\n'
        '{"step": 5, "loss": true, "grad_norm": "n/a"}\n',
    )
    assert [at for at, _ in cells(log)["loss"]] == [0, 2, 3]
    assert np.isnan(values(log, "loss")).all()
    assert cells(log)["grad_norm"] == [(0, INF), (1, -INF), (2, 2.5), (3, -INF)]
    assert log.damage == ()


def test_tensors_in_texts_are_numbers(tmp_path: Path) -> None:
    log = read(tmp_path, lines({"step": 1, "loss": "tensor(2.5)"}, {"step": 2, "loss": "tensor(nan, device='cuda:0')"}))
    np.testing.assert_array_equal(values(log, "loss"), [2.5, math.nan])
    assert (log.damage, log.notes) == ((), ())


def test_text_among_the_numbers_is_told(tmp_path: Path) -> None:
    log = read(tmp_path, lines(*({"step": i, "loss": 2.5 if i < 6 else "overflow", "note": "a"} for i in range(10))))
    assert log.notes == ("'loss' holds text in 4 rows from row 7 on, such as 'overflow': not read",)
    assert [(d.where, d.lost) for d in log.damage] == [("row 7", "those values")]
    # A configuration before the first value is none of it.
    log = read(tmp_path, lines({"loss": "mse", "lr": 0.1}, *({"step": i, "loss": 2.5} for i in range(10))))
    assert log.damage == ()
    log = read(tmp_path, lines(*({"step": i, "loss": "low", "lr": 0.1} for i in range(10))))
    assert log.empty == {"loss": "holds no numbers, such as 'low' in row 1"}


def test_a_loss_of_null_to_the_end_is_told(tmp_path: Path) -> None:
    rows = [{"step": i, "loss": 2.5 if i < 30 else None, "grad_norm": 0.5} for i in range(50)]
    (damage,) = read(tmp_path, lines(*rows)).damage
    assert (damage.where, damage.what) == ("row 31 ('step' 30)", "from here on 'loss' is blank, while the log goes on for 20 rows")
    rows = [{"step": i, "loss": 2.5} for i in range(50)] + [{"step": 49, f"eval/{k}_loss": 2.5} for k in "abcdef"]
    assert read(tmp_path, lines(*rows)).damage == ()


def test_zero_bytes_cost_their_line(tmp_path: Path) -> None:
    good = lines(*({"step": i, "loss": 2.5} for i in range(100)))
    log = read(tmp_path, good.replace('{"step": 50', '{"step": 5' + "\0" * 4096) + "\0" * 100)
    assert values(log, "step") == [i for i in range(100) if i != 50]
    assert [d.where for d in log.damage] == ["line 51", "line 101"]


def test_texts_that_are_numbers(tmp_path: Path) -> None:
    log = read(
        tmp_path, lines({"step": "1,000", "loss": "2.5", "lr": "1e-3", "time": "0:02:13"}, {"step": "2,000", "loss": "2.25", "lr": "1e-3"})
    )
    assert values(log, "step") == [1000, 2000]
    assert values(log, "loss") == [2.5, 2.25]


def test_nested_keys_and_short_lists(tmp_path: Path) -> None:
    record = {
        "step": 1,
        "train": {"loss": 2.5, "parts": {"box": 1.0}},
        "lr": [1e-3, 1e-4],
        "grad_norm": [0.5],
        "image": {"_type": "image", "size": 3},
    }
    log = read(tmp_path, lines(record, record), Wanted(loss="train/parts/box"))
    assert values(log, "train/loss") == [2.5, 2.5]
    assert values(log, "train/parts/box") == [1.0, 1.0]
    assert values(log, "lr/0") == [1e-3, 1e-3]
    assert values(log, "grad_norm") == [0.5, 0.5]


def test_a_cut_last_line(tmp_path: Path) -> None:
    log = read(tmp_path, '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25}\n{"step": 3, "lo')
    assert values(log, "loss") == [2.5, 2.25]
    (damage,) = log.damage
    assert (damage.where, damage.lost) == ("line 3", "that record")


def test_a_broken_line_in_the_middle(tmp_path: Path) -> None:
    log = read(tmp_path, '{"step": 1, "loss": 2.5}\n{"step": 2, "lo#$ 2.25}\n{"step": 3, "loss": 2.0}\n')
    assert cells(log)["loss"] == [(0, 2.5), (1, 2.0)]
    assert [d.where for d in log.damage] == ["line 2"]


def test_many_broken_lines_are_told_briefly(tmp_path: Path) -> None:
    log = read(tmp_path, lines({"step": 1, "loss": 2.5}) * 40 + '{"step": 2, "lo\n' * 30)
    assert len(log.damage) == 6
    assert "25 more" in log.damage[-1].what


def test_lines_are_told_apart_in_a_batch(tmp_path: Path) -> None:
    good = [json.dumps({"step": i, "loss": 2.5, "more": {"a": i}}) for i in range(1200)]
    good[3] = '{"step": 3, "loss": 2.5},{"step": 3, "loss": 9.5}'
    good[4] = '{"step": 4, "more": [{"a": 1}'
    good[5] = '{"a": 2}]}'
    log = read(tmp_path, "\n".join(good) + "\n")
    assert values(log, "loss") == [2.5] * 4 + [9.5] + [2.5] * 1194
    assert values(log, "step") == [0, 1, 2, 3, 3, *range(6, 1200)]
    assert [d.where for d in log.damage] == ["line 5", "line 6"]


def test_two_records_in_one_line(tmp_path: Path) -> None:
    log = read(tmp_path, '{"step": 1, "loss": 2.5}{"step": 2, "loss": 2.25}\n{"step": 3, "loss": 2.0}\n')
    assert values(log, "loss") == [2.5, 2.25, 2.0]
    assert log.damage == ()


def test_a_record_behind_the_beginning_of_another(tmp_path: Path) -> None:
    log = read(tmp_path, '{"step": 1, "loss": 2.5}\n{"step": 2, "lo{"step": 2, "loss": 2.25}\n{"step": 3, "loss": 2.0}{"step"\n')
    assert values(log, "loss") == [2.5, 2.25, 2.0]
    assert [d.where for d in log.damage] == ["line 2", "line 3"]
    # An object within a broken record is no record.
    log = read(tmp_path, '{"step": 1, "loss": 2.5}\n{"step" 2, "more": {"loss": 9.5}}\n')
    assert values(log, "loss") == [2.5]


def test_other_lines_between_are_noted(tmp_path: Path) -> None:
    log = read(tmp_path, '{"step": 1, "loss": 2.5}\nsaved a checkpoint\n\n{"step": 2, "loss": 2.25}\n')
    assert values(log, "loss") == [2.5, 2.25]
    assert log.notes == ("1 lines that are no JSON were left out",)


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_of_records(tmp_path: Path, indent: int | None) -> None:
    records = [{"step": i, "loss": 3 - i / 10} for i in range(5)]
    log = read(tmp_path, json.dumps(records, indent=indent))
    assert values(log, "loss") == [3 - i / 10 for i in range(5)]
    assert log.damage == ()


def test_a_cut_array(tmp_path: Path) -> None:
    text = json.dumps([{"step": i, "loss": 2.5} for i in range(5)], indent=2)
    log = read(tmp_path, text[: text.rindex("loss")])
    assert len(values(log, "loss")) == 4
    assert "follows" in log.damage[0].lost


def test_a_broken_record_in_an_array(tmp_path: Path) -> None:
    log = read(tmp_path, '[{"step": 1, "loss": 2.5},\n{"step": 2, "loss": },\n{"step": 3, "loss": 2.0}]\n')
    assert values(log, "loss") == [2.5, 2.0]
    assert [d.where for d in log.damage] == ["line 2"]


def test_a_broken_record_in_an_array_on_one_line(tmp_path: Path) -> None:
    log = read(tmp_path, json.dumps([{"step": i, "loss": 2.5} for i in range(5)]).replace('"step": 2', '"step" 2'))
    assert values(log, "step") == [0, 1, 3, 4]
    assert [d.lost for d in log.damage] == ["that record"]


def test_objects_one_after_another(tmp_path: Path) -> None:
    log = read(tmp_path, "\n".join(json.dumps({"step": i, "loss": 2.5}, indent=2) for i in range(3)))
    assert values(log, "step") == [0, 1, 2]


@pytest.mark.parametrize(
    "document",
    [
        {"loss": [2.5, 2.25], "val_loss": [3, 4], "params": {"epochs": 2}},
        {"config": {"lr": 1}, "history": [{"loss": 2.5}, {"loss": 2.25}], "tags": ["a"]},
        {"1": {"loss": 2.5}, "2": {"loss": 2.25}},
        {"loss": {"1": 2.5, "2": 2.25}, "acc": {"1": 0, "2": 1}},
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_one_document(tmp_path: Path, document: object, indent: int | None) -> None:
    assert values(read(tmp_path, json.dumps(document, indent=indent)), "loss") == [2.5, 2.25]


def test_tensorboard_download(tmp_path: Path) -> None:
    log = read(tmp_path, "[[1748869402.78, 250, 107.25], [1748869469.5, 400, NaN]]")
    assert values(log, "Step") == [250, 400]
    assert values(log, "Value")[0] == 107.25
    assert math.isnan(values(log, "Value")[1])


def test_step_of_all_steps(tmp_path: Path) -> None:
    records = [{"loss": 2.5, "grad_norm": 1.0, "global_step/max_steps": f"{s}/438", "elapsed_time": "6s"} for s in (1, 10, 20)]
    log = read(tmp_path, lines(*records, {"train_runtime": 9.0, "train_loss": 1.0}))
    assert values(log, "global_step/max_steps") == [1, 10, 20]
    assert log.step_key == "global_step/max_steps"
    assert log.roles[LOSS] == "loss"
    assert log.norm_stage is NormStage.PRE_CLIP
    assert log.sampling[LOSS] is Sampling.WINDOW_MEAN


def test_nested_very_deep(tmp_path: Path) -> None:
    deep = '{"a": ' * 100_000 + "1" + "}" * 100_000
    for broken in (deep, '{"loss": ' + "[" * 100_000):
        log = read(tmp_path, f'{{"step": 1, "loss": 2.5}}\n{broken}\n{{"step": 2, "loss": 2.25}}\n')
        assert values(log, "loss") == [2.5, 2.25]
        assert [d.where for d in log.damage] == ["line 2"]
    (tmp_path / "log.jsonl").write_text(deep)
    with pytest.raises(GradclipError, match="nested too deep"):
        READER.read(open_source(tmp_path / "log.jsonl"), Wanted())


def test_numbers_out_of_range(tmp_path: Path) -> None:
    log = read(tmp_path, '{"step": 1, "loss": 1e400}\n{"step": 2, "loss": ' + "9" * 400 + '}\n{"step": 3, "loss": ' + "9" * 5000 + "}\n")
    assert values(log, "loss") == [INF, INF]
    assert [d.where for d in log.damage] == ["line 3"]


def test_a_new_key_in_every_record(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("".join(f'{{"step": {i}, "loss": 2.5, "k{i}": 1}}\n' for i in range(22_000)))
    tracemalloc.start()
    log = READER.read(open_source(tmp_path / "log.jsonl"), Wanted())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(values(log, "loss")) == 22_000
    assert any("too many different keys" in n for n in log.notes)
    assert peak < 30 << 20


def test_one_huge_line(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b'{"step": 1, "loss": 2.5}\n{"note": "' + b"x" * (20 << 20) + b'\n{"step": 2, "loss": 2.25}\n')
    start = time.perf_counter()
    log = READER.read(open_source(tmp_path / "log.jsonl"), Wanted())
    assert time.perf_counter() - start < 5
    assert values(log, "loss") == [2.5, 2.25]
    assert [d.where for d in log.damage] == ["line 2"]
    assert len(log.damage[0].what) < 100


def test_an_array_of_millions_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text('[{"step": 1, "loss": 2.5}, ' + "1, " * 1_000_000 + '{"step": 2, "loss": 2.25}]')
    start = time.process_time()
    log = READER.read(open_source(tmp_path / "log.json"), Wanted())
    assert time.process_time() - start < 0.5
    assert values(log, "loss") == [2.5, 2.25]


def test_records_of_an_evaluation_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"mode": m, "iter": i, "loss": x} for i, (m, x) in enumerate([("train", 2.5), ("val", 9.5), ("train", 2.25), ("eval_epoch", 9.0)])
    ]
    log = read(tmp_path, lines({"env_info": "several\nlines"}, *rows))
    assert cells(log)["loss"] == [(1, 2.5), (3, 2.25)]
    assert log.notes == ("2 rows that say they are of an evaluation were left out",)


@pytest.mark.parametrize("content", ["{}\n", "[]", "[{}]", '{"a": "b"}\n', '{"step": 1, "lo'])
def test_nothing_to_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "log.jsonl").write_text(content)
    try:
        log = READER.read(open_source(tmp_path / "log.jsonl"), Wanted())
    except GradclipError as e:
        assert "expected objects of keys and numbers" in e.message
    else:
        assert not log.columns


@pytest.mark.parametrize(
    "content",
    [
        '[{"stream_name":"stderr","time":7.2,"data":"a\\n"}\n,{"stream_name":"stdout","time":9.2,"data":"b\\n"}\n]',
        '{"log": "step 1 loss 2.5\\n", "stream": "stdout", "time": "2024"}\n{"log": "step 2 loss 2.25\\n", "stream": "stdout"}\n',
        "{'loss': 2.5, 'grad_norm': 1.0}\n{'loss': 2.25, 'grad_norm': 1.5}\n",
        "[2021-05-25 06:38:10,754] [INFO] step 1 loss 2.5\n[2021-05-25 06:38:11,754] [INFO] step 2 loss 2.25\n",
        '{\n  "lr": 0.001,\n  "model": "small"\n}\nstep 1 loss 2.5\nstep 2 loss 2.25\n',
        "step,loss\n1,2.5\n",
        "1628697792090 332.68 0\n",
        "[1, 2, 3]",
        "",
    ],
)
def test_other_texts_are_not_claimed(tmp_path: Path, content: str) -> None:
    if content:
        assert not claimed(tmp_path, content)


# Large files ----------------------------------------------------------------------------------------------------------


def records(n: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    out: list[dict[str, object]] = []
    for i in range(n):
        out.append({"step": i, "loss": rng.normal(2, 1), "grad_norm": rng.lognormal(0, 3), "lr": 1e-3 if i % 3 else None, "phase": "train"})
        if i % 1500 == 1400:
            out.append({"step": i, "eval_loss": 2.5, "total_norm": i, "fp16": True})
    return out


def text(n: int) -> str:
    return lines(*records(n))


LARGE = {
    "plain": lambda: text(4000),
    "nan": lambda: text(3000).replace('"grad_norm": 1', '"grad_norm": NaN, "x": 1').replace('"loss": 1', '"loss": -Infinity, "y": 1'),
    "number texts": lambda: lines(*({"step": f"{i}/3000", "loss": f"{2 + i / 7:.3f}", "time": "0:01:02"} for i in range(3000))),
    "mixed types": lambda: text(2000) + lines({"step": 2000, "loss": "2.5"}, {"step": 2001, "loss": 2.25}),
    "nested": lambda: lines(*({"step": i, "train": {"loss": 2 + i / 7}} for i in range(2000))),
    "nested late": lambda: text(2000) + lines({"step": 2000, "loss": 2.5, "more": {"grad_norm": 0.5}}),
    "lists": lambda: lines(*({"step": i, "loss": 2.5, "lr": [0.5, 0.25]} for i in range(2000))),
    "key twice": lambda: text(2000).replace('"phase"', '"loss": 9, "phase"', 1),
    "broken line": lambda: text(2000).replace('{"step": 77,', '{"step" 77,'),
    "cut last line": lambda: text(2000)[:-30],
    "blank lines": lambda: text(2000).replace("\n", "\n\n"),
    "crlf": lambda: text(2000).replace("\n", "\r\n"),
    "colons in text": lambda: text(2000).replace('"train"', r'"a \"b\": c"'),
    "no blanks": lambda: "\n".join(json.dumps(r, separators=(",", ":")) for r in records(2000)),
    "array": lambda: json.dumps(records(2000)),
    "array of lines": lambda: "[\n" + ",\n".join(map(json.dumps, records(2000))) + "\n]\n",
    "indented array": lambda: json.dumps(records(2000), indent=2),
    "cut array": lambda: json.dumps(records(2000))[:-40],
    "evaluations": lambda: text(3000).replace('"phase": "train"', '"phase": "val"', 1000),
    "text": lambda: text(2000) + lines(*({"step": 2000 + i, "loss": "overflow", "grad_norm": 0.5} for i in range(9))),
    "text that looks numeric": lambda: lines(*({"step": i, "loss": "2.5" if i < 1999 else "over: flow"} for i in range(2010))),
    "null to the end": lambda: text(2000) + lines(*({"step": 2000 + i, "loss": None, "grad_norm": 0.5} for i in range(9))),
    "zero bytes": lambda: text(2000).replace('{"step": 77,', '{"step\0\0'),
    "huge numbers": lambda: text(2000).replace('"loss": 1', '"loss": 123456789012345678901234567890'),
}


@pytest.mark.parametrize("kind", LARGE)
def test_both_ways_of_reading_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    content = LARGE[kind]()
    small = read(tmp_path, content)
    assert max(len(c.at) for c in small.columns.values()) >= 1999
    monkeypatch.setattr(frame, "LARGE_BYTES", 0)
    for piece in (1 << 13, 1 << 17, 1 << 30):
        monkeypatch.setattr(frame, "PIECE_BYTES", piece)
        assert same(read(tmp_path, content), small)


@pytest.mark.parametrize(
    "kind",
    ["plain", "evaluations", "nan", "number texts", "cut last line", "crlf", "no blanks", "array", "array of lines", "indented array"],
)
def test_regular_records_take_the_fast_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(frame, "LARGE_BYTES", 0)
    monkeypatch.setattr("gradclip_cli.readers.jsonlines._by_line", None)
    monkeypatch.setattr("gradclip_cli.readers.jsonlines._one_after_another", None)
    assert len(values(read(tmp_path, LARGE[kind]()), "loss")) >= 1999


def test_an_object_of_several_runs_is_several_runs(tmp_path: Path) -> None:
    from gradclip_cli import read_runs

    runs = {name: [{"step": i, "loss": base + 1 / (i + 1), "grad_norm": 0.5} for i in range(40)] for name, base in (("a", 1.0), ("b", 2.0))}
    (tmp_path / "r.json").write_text(json.dumps({**runs, "config": [{"lr": 0.1, "depth": 2}]}))
    first, second = read_runs(tmp_path / "r.json")
    assert len(first.series["loss"]) == len(second.series["loss"]) == 40
    assert first.series["loss"].values[-1] < 1.1 < 2.0 < second.series["loss"].values[-1]
