"""polars, for text tables too large for the standard library: in pieces, counted, turned into columns."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradclip_cli.readers import numbers
from gradclip_cli.readers.log import Column, Source
from gradclip_cli.readers.open import to_utf8

if TYPE_CHECKING:
    import polars as pl

LARGE_BYTES = 8 << 20
"""From this size on (some 100,000 rows) importing polars pays."""

PIECE_BYTES = 4 << 20
"""How much text is held at a time: what stays in the cache, and out of the way of new memory."""

_GZIP = b"\x1f\x8b"
_GZIP_RATIO = 8

_BLOCK = 1 << 18


def is_large(source: Source) -> bool:
    """Whether the text is so large that polars pays."""
    try:
        with source.path.open("rb") as f:
            ratio = _GZIP_RATIO if f.read(2) == _GZIP else 1
            return f.seek(0, 2) * ratio >= LARGE_BYTES
    except OSError:  # reading it will say why
        return False


def pieces(source: Source) -> Iterator[bytes]:
    """The file as UTF-8, whole lines of it at a time. A piece much larger than `PIECE_BYTES` is one line, cut."""
    with source.path.open("rb") as f:
        head = f.read(4096)
        if head[:2] == _GZIP or to_utf8(head) is not head:
            f = io.BytesIO(source.read_utf8())  # type: ignore[assignment]
        f.seek(0)
        while block := f.read(PIECE_BYTES):
            yield block if block.endswith(b"\n") else block + f.readline(PIECE_BYTES)


def count(data: bytes, what: bytes) -> int:
    """How often one byte, or two bytes in a row, occur; several times as fast as `bytes.count` where that is often."""
    view = np.frombuffer(data, np.uint8)
    first = what[0]
    total = 0
    for i in range(0, len(view), _BLOCK):
        hits = view[i : i + _BLOCK] == first
        if len(what) == 2:
            after = view[i + 1 : i + 1 + _BLOCK] == what[1]
            hits = hits[: len(after)] & after
        total += int(np.count_nonzero(hits))
    return total


def columns_of(table: pl.DataFrame, keys: Iterable[str]) -> dict[str, Column]:
    """The columns of a frame by key. Row numbers are shared where a column has no gaps."""
    import polars as pl

    every_row = np.arange(table.height, dtype=np.int64)
    out = {}
    for key in dict.fromkeys(keys):
        series = table[key]
        if series.dtype == pl.String:
            out[key] = _from_texts(series)
            continue
        values = series if series.dtype == pl.Float64 else series.cast(pl.Float64)
        at = np.flatnonzero(values.is_not_null().to_numpy()) if values.null_count() else every_row
        out[key] = Column(at, values.drop_nulls().to_numpy())
    return out


def _from_texts(series: pl.Series) -> Column:
    parsed = [(row, n) for row, text in enumerate(series) if text and (n := numbers.parse(text)) is not None]
    at = np.array([row for row, _ in parsed], np.int64)
    return Column(at, np.array([n.value for _, n in parsed], np.float64), any(n.rounded for _, n in parsed))
