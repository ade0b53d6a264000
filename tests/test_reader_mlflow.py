"""MLflow metric files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gradclip_cli.errors import GradclipError
from gradclip_cli.readers.log import Log, Wanted
from gradclip_cli.readers.mlflow import READER
from gradclip_cli.readers.open import open_source
from tests.test_reader_csv import cells

T = 1628697792090


def read(path: Path, content: str) -> Log:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    source = open_source(path)
    assert READER.claims(source)
    return READER.read(source, Wanted())


def test_values_by_step(tmp_path: Path) -> None:
    log = read(tmp_path / "loss", f"{T} 2.5 0\n{T + 9} nan 10\n{T + 18} 2.25 20\n{T + 27} inf 30\n")
    assert log.by_step
    assert [at for at, _ in cells(log)["loss"]] == [0, 10, 20, 30]
    assert math.isnan(cells(log)["loss"][1][1])
    assert cells(log)["loss"][2:] == [(20, 2.25), (30, math.inf)]


@pytest.mark.parametrize(
    ("below", "key"), [("mlruns/0/abc/metrics/train/loss", "train/loss"), ("metrics/grad_norm", "grad_norm"), ("other/loss", "loss")]
)
def test_the_key_is_the_path(tmp_path: Path, below: str, key: str) -> None:
    assert list(read(tmp_path / below, f"{T} 2.5 0\n{T} 2.25 1\n").columns) == [key]


def test_without_steps_values_are_counted(tmp_path: Path) -> None:
    for content in (f"{T} 2.5\n{T + 1} 2.25\n", f"{T} 2.5 0\n{T + 1} 2.25 0\n"):
        log = read(tmp_path / "loss", content)
        assert not log.by_step
        assert cells(log)["loss"] == [(0, 2.5), (1, 2.25)]
        assert any("counted" in n for n in log.notes)


def test_one_value(tmp_path: Path) -> None:
    log = read(tmp_path / "loss", f"{T} 2.5 0\n")
    assert log.by_step
    assert cells(log)["loss"] == [(0, 2.5)]


def test_lines_of_version_3(tmp_path: Path) -> None:
    log = read(tmp_path / "loss", f"{T} 2.5 0 0123abcd data 99ff\n{T} 2.25 1 0123abcd data 99ff\n")
    assert cells(log)["loss"] == [(0, 2.5), (1, 2.25)]


def test_damage(tmp_path: Path) -> None:
    lines = [f"{T + i} 2.5 {i}\n" for i in range(40)]
    lines[17] = "#$%&\n"
    log = read(tmp_path / "loss", "".join(lines) + f"{T + 99} 2.")
    assert len(cells(log)["loss"]) == 39
    assert [d.where for d in log.damage] == ["line 18", "line 41"]


def test_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "loss").write_text("no metric\n")
    with pytest.raises(GradclipError, match="MLflow metric file"):
        READER.read(open_source(tmp_path / "loss"), Wanted())


@pytest.mark.parametrize(
    "content", ["1 2.5 0\n2 2.25 1\n", "loss 2.5 0\n", "1628697792090,2.5,0\n", f"{T} started the run\n", f"{T} 2.5 0\nepoch 1 done\n"]
)
def test_other_texts_are_not_claimed(tmp_path: Path, content: str) -> None:
    (tmp_path / "loss").write_text(content)
    assert not READER.claims(open_source(tmp_path / "loss"))
