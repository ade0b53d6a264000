"""polars, for text tables too large for the standard library: in pieces, counted, turned into columns."""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from gradclip_cli.readers import numbers
from gradclip_cli.readers.log import Column, Source
from gradclip_cli.readers.open import to_utf8
from gradclip_cli.readers.unread import Texts

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


def columns_of(table: pl.DataFrame, keys: Iterable[str], texts: Texts) -> dict[str, Column]:
    """The columns of a frame by key; what is no number in them goes into `texts`. Row numbers are shared where a column has no gaps."""
    import polars as pl

    every_row = np.arange(table.height, dtype=np.int64)
    out = {}
    for key in dict.fromkeys(keys):
        series = table[key]
        if series.dtype == pl.String:
            out[key] = _from_texts(key, series, texts)
            continue
        values = series if series.dtype == pl.Float64 else series.cast(pl.Float64)
        at = np.flatnonzero(values.is_not_null().to_numpy()) if values.null_count() else every_row
        out[key] = Column(at, values.drop_nulls().to_numpy())
    return out


def _from_texts(key: str, series: pl.Series, texts: Texts) -> Column:
    return from_texts(((row, text) for row, text in enumerate(series) if text is not None), key, texts)


def from_texts(cells: Iterable[tuple[int, str]], key: str, texts: Texts) -> Column:
    """The numbers among cells of text; the other cells go into `texts`."""
    at = array("q")
    values = array("d")
    rounded = False
    for row, text in cells:
        number = numbers.parse(text)
        if number is None:
            texts.add(key, row, text)
            continue
        at.append(row)
        values.append(number.value)
        rounded = rounded or number.rounded
    return Column(np.frombuffer(at, np.int64), np.frombuffer(values, np.float64), rounded)
