"""Parquet tables."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from gradclip_cli.errors import GradclipError
from gradclip_cli.readers.log import Log, Wanted
from gradclip_cli.readers.open import open_source
from gradclip_cli.readers.parquet import READER
from tests.conftest import ROOT
from tests.test_reader_csv import cells, values


def write(path: Path, **columns: list[object]) -> Path:
    import polars as pl

    pl.DataFrame(columns).write_parquet(path / "run.parquet", row_group_size=100)
    return path / "run.parquet"


def read(path: Path, wanted: Wanted | None = None) -> Log:
    source = open_source(path)
    assert READER.claims(source)
    return READER.read(source, wanted or Wanted())


def test_null_is_absence_nan_is_data(tmp_path: Path) -> None:
    log = read(write(tmp_path, step=[1, 2, 3], loss=[2.5, None, math.nan], grad_norm=[None, 0.5, math.inf], epoch=[0, 0, 1]))
    assert values(log, "step") == [1, 2, 3]
    assert cells(log)["loss"][0] == (0, 2.5)
    assert [at for at, _ in cells(log)["loss"]] == [0, 2]
    assert math.isnan(values(log, "loss")[1])
    assert cells(log)["grad_norm"] == [(1, 0.5), (2, math.inf)]


def test_columns_that_matter(tmp_path: Path) -> None:
    path = write(tmp_path, step=[1, 2], loss=["2.5", "nan"], note=["a", "b"], temperature=[70, 71], good=[True, False])
    log = read(path)
    assert list(log.columns) == ["step", "loss"]
    assert values(log, "loss")[0] == 2.5
    assert math.isnan(values(log, "loss")[1])
    assert "temperature" in read(path, Wanted(loss="temperature")).columns


def test_rows_of_an_evaluation_are_left_out(tmp_path: Path) -> None:
    log = read(write(tmp_path, step=[1, 1, 2], loss=[2.5, 9.5, 2.25], Split=["train", "valid", None]))
    assert cells(log)["loss"] == [(0, 2.5), (2, 2.25)]
    assert len(log.notes) == 1


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(GradclipError, match="without rows"):
        read(write(tmp_path, step=[], loss=[]))


def test_a_cut_file(tmp_path: Path) -> None:
    path = write(tmp_path, step=list(range(500)), loss=[2.5] * 500)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(GradclipError, match="without its end"):
        read(path)


def test_a_broken_row_group_costs_its_rows_only(tmp_path: Path) -> None:
    from pyarrow import parquet as pq

    path = write(tmp_path, step=list(range(500)), loss=[2.5 - i / 1000 for i in range(500)])
    data = bytearray(path.read_bytes())
    group = pq.ParquetFile(path).metadata.row_group(2)
    at = group.column(1).data_page_offset
    data[at : at + 16] = b"\xff" * 16
    path.write_bytes(data)
    log = read(path)
    assert [d.where for d in log.damage] == ["row group 2"]
    assert cells(log)["loss"] == [(i, 2.5 - i / 1000) for i in range(500) if not 200 <= i < 300]
    assert [at for at, _ in cells(log)["step"]] == [i for i in range(500) if not 200 <= i < 300]


def test_other_kinds_of_numbers(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet as pq

    table = pa.table(
        {
            "step": pa.array([1, 2, None, 4], pa.uint32()),
            "loss": pa.array([2.5, None, 2.25, 2.0], pa.float16()),
            "grad_norm": pa.array(["0.5", "nan", None, "0.25"]).dictionary_encode(),
            "lr": pa.array([1, 2, 3, None], pa.int32()).cast(pa.decimal128(20, 3)),
            "grad_norms": pa.array([[1.0], [2.0], [3.0], [4.0]]),
        }
    )
    pq.write_table(table.slice(1), tmp_path / "run.parquet")
    log = read(tmp_path / "run.parquet")
    assert cells(log)["step"] == [(0, 2.0), (2, 4.0)]
    assert cells(log)["loss"] == [(1, 2.25), (2, 2.0)]
    assert math.isnan(cells(log)["grad_norm"][0][1])
    assert cells(log)["grad_norm"][1:] == [(2, 0.25)]
    assert cells(log)["lr"] == [(0, 2.0), (1, 3.0)]
    assert "grad_norms" not in log.columns


def test_what_is_no_number_is_told(tmp_path: Path) -> None:
    rows = range(20)
    loss = ["2.5" if i < 10 else "overflow" for i in rows]
    log = read(write(tmp_path, step=list(rows), loss=loss, grad_norm=[0.5 if i < 15 else None for i in rows]))
    assert values(log, "loss") == [2.5] * 10
    assert [d.where for d in log.damage] == ["row 11", "row 16 ('step' 15)"]
    assert log.notes == ("'loss' holds text in 10 rows from row 11 on, such as 'overflow': not read",)


def test_pandas_is_not_imported(tmp_path: Path) -> None:
    path = write(tmp_path, step=[1, None, 3], loss=[2.5, 2.25, None], name=["a", "b", "c"])
    code = f"""if True:
        import sys
        from pathlib import Path
        from gradclip_cli.readers.log import Wanted
        from gradclip_cli.readers.open import open_source
        from gradclip_cli.readers.parquet import READER
        READER.read(open_source(Path({str(path)!r})), Wanted())
        print("pandas" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_broken_files_are_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = range(1000)
    path = write(tmp_path, step=list(rows), loss=[i / 7 for i in rows], grad_norm=[None if i % 5 else 0.5 for i in rows])
    good = path.read_bytes()
    rng = random.Random(0)
    num_errors = 0
    for _ in range(200):
        bad = bytearray(good)
        for _ in range(rng.choice([1, 3])):
            # Most of it where the layout is kept.
            first = max(4, len(bad) - 1500) if rng.random() < 0.7 else 4
            bad[rng.randrange(first, len(bad) - 4)] = rng.choice([0, 255, rng.randrange(256)])
        path.write_bytes(bad)
        try:
            log = read(path)
        except GradclipError as e:
            num_errors += 1
            assert "\n" not in e.message
        else:
            assert all(len(c.at) == len(c.values) <= 1000 for c in log.columns.values())
    assert 20 < num_errors < 200
    assert capfd.readouterr().err == ""
