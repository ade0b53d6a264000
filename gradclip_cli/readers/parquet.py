"""Parquet tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import Damage
from gradclip_cli.readers import frame, names
from gradclip_cli.readers.log import Column, Log, Reader, Source, Wanted
from gradclip_cli.readers.records import evaluation_notes, marks_evaluation, without_rows
from gradclip_cli.readers.unread import Texts, account

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"PAR1"
# A constant column takes next to nothing, but a damaged count of rows can claim anything.
_MAX_ROWS_PER_BYTE = 1000
_MAX_SHOWN_DAMAGE = 5
# What pyarrow raises on damaged files, beside its own exceptions.
_ERRORS = (OSError, ValueError, OverflowError, MemoryError, KeyError, IndexError, NotImplementedError)


def _claims(source: Source) -> bool:
    return source.head.startswith(_MAGIC)


def _read(source: Source, wanted: Wanted) -> Log:
    import pyarrow as pa
    from pyarrow import parquet as pq

    data = source.read_bytes()
    if not data.endswith(_MAGIC):
        raise GradclipError(f"{source.path}: a Parquet file without its end, where the layout is kept; nothing in it can be read")
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        schema = file.schema_arrow
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    except (pa.lib.ArrowException, *_ERRORS) as e:
        raise GradclipError(f"{source.path}: damaged Parquet file ({_first_line(e)}); nothing in it can be read") from e
    splits = [f.name for f in schema if f.name.lower() in names.SPLIT_KEYS]
    readable = [f.name for f in schema if _is_readable(f.type) and f.name not in splits]
    chosen = names.to_read(list(dict.fromkeys(readable)), wanted)
    if not chosen or not any(sizes):
        raise GradclipError(f"{source.path}: a Parquet table without rows or numbers; expected a row a step")
    parts: dict[str, list[Column]] = {key: [] for key in chosen}
    left_out: list[int] = []
    texts = Texts()
    bad: list[tuple[int, str]] = []
    first = 0
    for i, size in enumerate(sizes):
        try:
            if not 0 <= first + size <= max(1 << 20, _MAX_ROWS_PER_BYTE * len(data)):
                raise ValueError(f"it claims {size} rows")
            table = file.read_row_group(i, columns=[*chosen, *splits], use_threads=False)
            group = {key: _column(table.column(key), first, key, texts) for key in chosen}
            marked = [row for key in splits for row, text in enumerate(table.column(key).to_pylist(), first) if marks_evaluation(text)]
        except (pa.lib.ArrowException, *_ERRORS) as e:
            bad.append((i, _first_line(e)))
            first += max(0, min(size, 1 << 40))
            continue
        for key, column in group.items():
            parts[key].append(column)
        left_out += marked
        first += size
    columns = {key: _joined(p) for key, p in parts.items() if p}
    if not columns:
        raise GradclipError(f"{source.path}: damaged Parquet file ({bad[0][1]}); nothing in it can be read")
    damage = [Damage(f"row group {i}", f"{what}, expected a column's pages", "its rows") for i, what in bad[:_MAX_SHOWN_DAMAGE]]
    if len(bad) > _MAX_SHOWN_DAMAGE:
        damage.append(Damage("further on", f"{len(bad) - _MAX_SHOWN_DAMAGE} more damaged row groups", "their rows"))
    # Where everything is called a test, that is the name of the run.
    rows = np.unique(np.array(left_out if len(set(left_out)) < first else [], np.int64))
    columns = without_rows(columns, rows)
    notes, unread, empty = account(columns, texts, first, rows, wanted)
    return Log("parquet", columns, damage=(*damage, *unread), notes=(*evaluation_notes(rows), *notes), empty=empty)


def _is_readable(kind: pa.DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(is_a(kind) for is_a in (types.is_integer, types.is_floating, types.is_decimal, types.is_string, types.is_large_string))


def _column(values: pa.ChunkedArray, first: int, key: str, texts: Texts) -> Column:
    """The values that are there; other texts go into `texts`. By the buffers: pyarrow's own way to numpy imports pandas."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if types.is_string(values.type) or types.is_large_string(values.type):
        return frame.from_texts(((row, text) for row, text in enumerate(values.to_pylist(), first) if text is not None), key, texts)
    columns = []
    for chunk in values.cast(pa.float64(), safe=False).chunks:
        valid, numbers_of = chunk.buffers()
        rows = np.arange(first, first + len(chunk))
        inside = slice(chunk.offset, chunk.offset + len(chunk))
        logged = np.frombuffer(numbers_of, np.float64)[inside] if len(chunk) else np.empty(0)
        if valid is not None:
            there = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[inside].astype(bool)
            rows, logged = rows[there], logged[there]
        columns.append(Column(rows, logged))
        first += len(chunk)
    return _joined(columns)


def _joined(columns: list[Column]) -> Column:
    at: npt.NDArray[np.int64] = np.concatenate([np.empty(0, np.int64), *(c.at for c in columns)])
    return Column(at, np.concatenate([np.empty(0), *(c.values for c in columns)]), any(c.rounded for c in columns))


def _first_line(e: BaseException) -> str:
    return (str(e).strip().splitlines() or [type(e).__name__])[0][:120]


READER = Reader("parquet", "Parquet tables", _claims, _read)
