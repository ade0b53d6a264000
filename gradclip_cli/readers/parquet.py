"""Parquet tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gradclip_cli.errors import GradclipError
from gradclip_cli.readers import frame, names
from gradclip_cli.readers.log import Log, Reader, Source, Wanted
from gradclip_cli.readers.records import evaluation_notes, evaluation_rows, without_rows

_MAGIC = b"PAR1"


def _claims(source: Source) -> bool:
    return source.head.startswith(_MAGIC)


def _read(source: Source, wanted: Wanted) -> Log:
    import polars as pl

    data = source.read_bytes()
    if not data.endswith(_MAGIC):
        raise GradclipError(f"{source.path}: a Parquet file without its end, where the layout is kept; nothing in it can be read")
    try:
        with _quiet():
            schema = pl.read_parquet_schema(data)
            keys = [k for k, t in schema.items() if t.is_numeric() or t in (pl.String, pl.Null)]
            splits = [k for k in schema if k.lower() in names.SPLIT_KEYS]
            chosen = names.to_read([k for k in keys if k not in splits], wanted)
            table = pl.read_parquet(data, columns=list(dict.fromkeys([*chosen, *splits]))) if chosen else pl.DataFrame()
            left_out = evaluation_rows(table, splits)
            columns = without_rows(frame.columns_of(table, chosen), left_out)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, OverflowError, ValueError) as e:
        raise GradclipError(f"{source.path}: damaged Parquet file ({_first_line(e)}); nothing in it can be read") from e
    if not table.height:
        raise GradclipError(f"{source.path}: a Parquet table without rows or numbers; expected a row a step")
    return Log("parquet", columns, notes=tuple(evaluation_notes(left_out)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without polars' own words on standard error about a damaged file: it is told as one sentence here."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def _first_line(e: BaseException) -> str:
    return (str(e).strip().splitlines() or ["no reason given"])[0][:120]


READER = Reader("parquet", "Parquet tables", _claims, _read)
