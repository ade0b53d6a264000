"""Hugging Face trainer_state.json."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import GRAD_NORM, LOSS, LR, NormStage, Sampling
from gradclip_cli.readers import frame
from gradclip_cli.readers.log import Log, Wanted
from gradclip_cli.readers.open import open_source
from gradclip_cli.readers.trainer_state import READER
from tests.test_reader_csv import cells, same, values


def history(n: int, every: int = 10) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    out: list[dict[str, Any]] = []
    for i in range(1, n + 1):
        step = i * every
        loss, norm = round(rng.normal(2, 0.1), 4), rng.lognormal(0, 0.3)
        out.append({"epoch": i / 100, "grad_norm": norm, "learning_rate": 5e-5 * (1 - i / n), "loss": loss, "step": step})
        if i % 50 == 0:
            out.append({"epoch": i / 100, "eval_loss": 1.5, "eval_runtime": 9.5, "step": step})
    out.append({"epoch": n / 100, "step": n * every, "total_flos": 1.5e17, "train_loss": 2.0, "train_runtime": 99.5})
    return out


def state(records: list[dict[str, Any]], **more: object) -> str:
    whole = {"best_metric": None, "global_step": records[-1]["step"], "log_history": records, "stateful_callbacks": {"a": [1, {}]}, **more}
    return json.dumps(whole, indent=2, sort_keys=True) + "\n"


def read(path: Path, content: str) -> Log:
    (path / "trainer_state.json").write_text(content)
    source = open_source(path / "trainer_state.json")
    assert READER.claims(source)
    return READER.read(source, Wanted())


def test_rows_roles_and_stage(tmp_path: Path) -> None:
    log = read(tmp_path, state(history(100), logging_steps=10))
    assert values(log, "loss") == [r["loss"] for r in history(100) if "loss" in r]
    steps = dict(cells(log)["step"])
    assert [steps[at] for at, _ in cells(log)["loss"]] == list(range(10, 1001, 10))
    assert log.step_key == "step"
    assert log.roles == {LOSS: "loss", GRAD_NORM: "grad_norm", LR: "learning_rate"}
    assert log.norm_stage is NormStage.PRE_CLIP
    assert log.sampling == {LOSS: Sampling.WINDOW_MEAN, GRAD_NORM: Sampling.INSTANT, LR: Sampling.INSTANT}


def test_the_summary_is_no_point(tmp_path: Path) -> None:
    log = read(tmp_path, state(history(20)))
    assert "train_loss" not in log.columns
    assert "eval_loss" not in log.columns
    assert len(values(log, "step")) == 20
    # A train_loss logged on the way is.
    own = [{"step": 1, "train_loss": 2.5}, {"step": 2, "train_loss": 2.25}, {"step": 2, "train_loss": 2.4, "train_runtime": 9.0}]
    assert values(read(tmp_path, state(own)), "train_loss") == [2.5, 2.25]


@pytest.mark.parametrize(
    ("every", "more", "expected"),
    [
        (10, {}, Sampling.WINDOW_MEAN),
        (1, {}, Sampling.INSTANT),
        (1, {"logging_steps": 1}, Sampling.INSTANT),
        (10, {"logging_steps": 10}, Sampling.WINDOW_MEAN),
        (10, {"logging_steps": 0.05}, Sampling.WINDOW_MEAN),
    ],
)
def test_what_a_loss_stands_for(tmp_path: Path, every: int, more: dict[str, object], expected: Sampling) -> None:
    assert read(tmp_path, state(history(20, every), **more)).sampling[LOSS] is expected


def test_own_keys_and_bare_nan(tmp_path: Path) -> None:
    records = [{"loss": 2.5, "lr": 1e-3, "step": 1, "train/ploss_0": 2.0}, {"grad_norm": math.nan, "loss": 0.0, "lr": 1e-3, "step": 2}]
    log = read(tmp_path, state(records))
    assert values(log, "loss") == [2.5, 0.0]
    assert math.isnan(values(log, "grad_norm")[0])
    assert values(log, "lr") == [1e-3, 1e-3]
    assert LR not in log.roles


def test_a_cut_file(tmp_path: Path) -> None:
    content = state(history(20))
    log = read(tmp_path, content[: content.index('"step": 150')])
    assert len(values(log, "loss")) == 14
    assert "all that follows" in log.damage[0].lost


def test_nothing_logged(tmp_path: Path) -> None:
    with pytest.raises(GradclipError, match="empty log_history"):
        read(tmp_path, '{"global_step": 0, "log_history": []}')
    with pytest.raises(GradclipError, match="broken log_history"):
        read(tmp_path, '{"global_step": 0, "log_history": [{"loss": ')


def test_one_line(tmp_path: Path) -> None:
    assert values(read(tmp_path, json.dumps({"log_history": history(20), "global_step": 200})), "loss")[0] == history(20)[0]["loss"]


def test_json_lines_that_end_in_a_history_are_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "logging.jsonl").write_text('{"loss": 2.5, "step": 1}\n{"loss": 2.25, "step": 2}\n{"log_history": [{"loss": 2.5}]}\n')
    assert not READER.claims(open_source(tmp_path / "logging.jsonl"))


def test_what_is_no_number_is_told(tmp_path: Path) -> None:
    records = history(100)
    records[30]["loss"] = "tensor(nan)"
    records[31]["loss"] = "overflow"
    log = read(tmp_path, state(records, logging_steps=10))
    assert len(values(log, "loss")) == 99
    assert np.isnan(values(log, "loss")).sum() == 1
    assert [d.where for d in log.damage] == ["row 32"]
    records = [r | ({"loss": None} if i > 60 else {}) for i, r in enumerate(history(90))]
    assert any("'loss' is blank" in d.what for d in read(tmp_path, state(records, logging_steps=10)).damage)


def test_zero_bytes_cost_their_record(tmp_path: Path) -> None:
    log = read(tmp_path, state(history(100), logging_steps=10).replace('"step": 490', '"step": \0\0\0', 1))
    assert 490 not in values(log, "step")
    assert len(values(log, "loss")) == 99
    assert len(log.damage) == 1


def test_a_history_of_millions_of_numbers(tmp_path: Path) -> None:
    with pytest.raises(GradclipError, match="empty log_history"):
        read(tmp_path, '{"log_history": [' + "1," * 1_000_000 + "1]}")


@pytest.mark.parametrize("kind", ["plain", "nan", "blank in a key", "one line", "nested", "cut", "other rows"])
def test_both_ways_of_reading_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    records = history(2000)
    if kind == "nan":
        records[700] |= {"loss": 0.0, "grad_norm": math.nan}
        records[701] |= {"grad_norm": math.inf}
    elif kind == "blank in a key":
        records[5]["lm loss"] = 2.5
    elif kind == "nested":
        records[900]["more"] = {"a": [1, 2]}
    elif kind == "other rows":
        records[1900:1900] = [{"step": 19000, "rewards/margins": 0.5}]
    content = state(records, logging_steps=10)
    if kind == "one line":
        content = json.dumps(json.loads(content))
    elif kind == "cut":
        content = content[: len(content) // 2]
    small = read(tmp_path, content)
    assert len(values(small, "loss")) >= 900
    monkeypatch.setattr(frame, "LARGE_BYTES", 0)
    for piece in (1 << 14, 1 << 30):
        monkeypatch.setattr(frame, "PIECE_BYTES", piece)
        assert same(read(tmp_path, content), small)
    if kind in ("plain", "nan", "blank in a key", "one line", "other rows"):
        monkeypatch.setattr("gradclip_cli.readers.trainer_state.values_in", None)
        assert same(read(tmp_path, content), small)
