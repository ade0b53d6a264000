"""Megatron-LM golden values."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gradclip_cli.errors import GradclipError
from gradclip_cli.readers.golden_values import READER
from gradclip_cli.readers.log import Log, Wanted
from gradclip_cli.readers.open import open_source
from tests.test_reader_csv import cells


def read(path: Path, content: str) -> Log:
    (path / "golden_values.json").write_text(content)
    source = open_source(path / "golden_values.json")
    assert READER.claims(source)
    return READER.read(source, Wanted())


def metric(values: object, start: int = 1, every: int = 5) -> dict[str, object]:
    return {"start_step": start, "end_step": 20, "step_interval": every, "values": values}


def test_values_by_step(tmp_path: Path) -> None:
    document = {"lm loss": metric({"1": 12.5, "5": 12.25, "10": 11.5}), "num-zeros": metric({"1": 7, "5": 8, "10": 9})}
    log = read(tmp_path, json.dumps(document))
    assert log.by_step
    assert cells(log) == {"lm loss": [(1, 12.5), (5, 12.25), (10, 11.5)]}
    assert (log.damage, log.notes) == ((), ())


def test_the_text_nan_fills_steps_without_a_value(tmp_path: Path) -> None:
    content = json.dumps({"lm loss": metric({"1": 12.5, "5": math.nan, "10": "nan", "15": "nan", "20": "11.5"})}, indent=4)
    log = read(tmp_path, content)
    assert [at for at, _ in cells(log)["lm loss"]] == [1, 5, 20]
    assert math.isnan(cells(log)["lm loss"][1][1])
    assert log.notes == ("2 values are the text 'nan', which stands for steps without a value: left out",)


def test_text_is_damage(tmp_path: Path) -> None:
    log = read(tmp_path, json.dumps({"lm loss": metric({"1": 12.5, "5": "overflow", "10": "tensor(nan)", "15": "N/A"})}))
    assert [at for at, _ in cells(log)["lm loss"]] == [1, 10]
    assert [(d.where, d.what) for d in log.damage] == [("'lm loss'", "1 values are text such as 'overflow', expected numbers")]


def test_older_files_list_the_values(tmp_path: Path) -> None:
    log = read(tmp_path, json.dumps({"lm loss": metric([10.5, 10.25, 10.0], start=0)}))
    assert cells(log)["lm loss"] == [(0, 10.5), (5, 10.25), (10, 10.0)]


def test_a_cut_file(tmp_path: Path) -> None:
    steps = range(1, 100)
    content = json.dumps({"lm loss": metric({str(s): 12.5 for s in steps}), "grad-norm": metric({str(s): 0.5 for s in steps})})
    log = read(tmp_path, content[: content.rindex('"50": ') + 8])
    assert len(cells(log)["lm loss"]) == 99
    assert cells(log)["grad-norm"] == [(s, 0.5) for s in range(1, 50)]
    assert log.damage[0].where.startswith("character ")


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(GradclipError, match="no metric with values"):
        read(tmp_path, json.dumps({"lm loss": metric({})}))
    with pytest.raises(GradclipError, match="no metric with values"):
        read(tmp_path, '{"lm loss": {"start_step": 1, "values": {"a": ' + "[" * 100_000)


@pytest.mark.parametrize(
    "content", ['{"step": 1, "values": {"a": 1}}', '{"lm loss": {"1": 2.5}}', '{"log_history": []}', "[]", "lm loss 2.5"]
)
def test_other_documents_are_not_claimed(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    assert not READER.claims(open_source(tmp_path / "x.json"))
