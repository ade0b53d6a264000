"""From records (JSON objects, history entries) to columns."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.run import Damage
from gradclip_cli.readers import frame, names, numbers
from gradclip_cli.readers.log import Column, Wanted
from gradclip_cli.readers.unread import Texts, account

if TYPE_CHECKING:
    import polars as pl

MAX_KEYS = 20_000
_MAX_DEPTH = 16
_MAX_LIST = 16
_MAX_KEY_LENGTH = 1000
_SAFE = 1 << 62
# How a text must begin to be worth parsing as a number.
_NUMERIC_START = frozenset("0123456789+-.nNiI'\" tTabfj#\u221e")
# polars knows no bare NaN and Infinity; these numbers stand in for them, and nobody logs them.
_STAND_INS = {b"NaN": (b"-1.7308242190517263e-297", math.nan), b"Infinity": (b"-1.7308242190517263e-298", math.inf)}
_STAND_INS[b"-Infinity"] = (b"-1.7308242190517263e-299", -math.inf)
_SAMPLE_LINES = 1000


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """What records held: columns by key in the order of first appearance, and what is to be told of them."""

    columns: dict[str, Column]
    notes: list[str]
    damage: list[Damage]
    empty: dict[str, str]


class Records:
    """Numbers of records that arrive one by one.

    Keys of nested objects are joined with "/", a short list counts as an object with the keys 0, 1, ...,
    a list of one as its value. Texts count where they are numbers; the others are told of (see `unread.account`).
    Booleans, null and the rest do not count.

    A record that says it is of an evaluation ({"mode": "val", "loss": ...}) counts as a row and nothing else.

    Attributes:
        num_rows: Records so far.
    """

    def __init__(self) -> None:
        self.num_rows = 0
        self._full = False
        self._evaluations = array("q")
        self._at: dict[str, array[int]] = {}
        self._values: dict[str, array[float]] = {}
        self._rounded: set[str] = set()
        self._texts = Texts()

    def add(self, record: Mapping[str, Any]) -> None:
        row = self.num_rows
        self.num_rows += 1
        if not names.SPLIT_KEYS.isdisjoint(record) and any(marks_evaluation(record.get(k)) for k in names.SPLIT_KEYS):
            self._evaluations.append(row)
        values_of, at_of = self._values, self._at
        for key, value in record.items():
            kind = type(value)
            # Most of them, without a call; an integer may be beyond float64.
            if (kind is float or (kind is int and -_SAFE < value < _SAFE)) and key in values_of:
                values_of[key].append(value)
                at_of[key].append(row)
            elif kind is float or kind is int or kind is str:
                self._put(row, key, value)
            elif kind is dict or kind is list:
                self._put_nested(row, key, value)

    def add_lists(self, lists: Mapping[str, list[Any]]) -> None:
        """The values of each key for one record after another."""
        first = self.num_rows
        for key, values in lists.items():
            if key not in self._values and set(map(type, values)) <= {float, int}:
                try:
                    self._values[key] = array("d", values)
                except OverflowError:
                    self._values[key] = array("d", map(_to_float, values))
                self._at[key] = array("q", range(first, first + len(values)))
            else:
                for row, value in enumerate(values, first):
                    self._put_nested(row, key, value)
        self.num_rows += max(map(len, lists.values()))

    def found(self, wanted: Wanted, also: Collection[str] = ()) -> Found:
        """The columns someone may ask for (see `names.to_read`), and those in `also`."""
        chosen = {*names.to_read(list(self._values), wanted), *also}
        columns = {
            key: Column(np.frombuffer(self._at[key], np.int64), np.frombuffer(values, np.float64), key in self._rounded)
            for key, values in self._values.items()
            if key in chosen
        }
        left_out = self._left_out()
        columns = without_rows(columns, left_out)
        full = ["the records hold too many different keys; the last ones were left out"] if self._full else []
        notes, damage, empty = account(columns, self._texts, self.num_rows, left_out, wanted)
        return Found(columns, full + evaluation_notes(left_out) + notes, damage, empty)

    def _left_out(self) -> npt.NDArray[np.int64]:
        # Where everything is called a test, that is the name of the run.
        return np.array(self._evaluations if len(self._evaluations) < self.num_rows else [], np.int64)

    def _put(self, row: int, key: str, value: float | int | str) -> None:
        if type(value) is str:
            number = numbers.parse(value) if value[:1] in _NUMERIC_START else None
            if number is None:
                if key not in names.SPLIT_KEYS:
                    self._texts.add(key, row, value)
                return
            if number.rounded:
                self._rounded.add(key)
            value = number.value
        values = self._values.get(key)
        if values is None:
            if len(self._values) >= MAX_KEYS or len(key) > _MAX_KEY_LENGTH:
                self._full = True
                return
            values = self._values[key] = array("d")
            self._at[key] = array("q")
        values.append(value if type(value) is float else _to_float(value))  # type: ignore[arg-type]
        self._at[key].append(row)

    def _put_nested(self, row: int, key: str, value: Any) -> None:
        stack: list[tuple[str, Any, int]] = [(key, value, 0)]
        while stack:
            key, value, depth = stack.pop()
            kind = type(value)
            if kind is float or kind is int or kind is str:
                self._put(row, key, value)
            elif depth >= _MAX_DEPTH or len(key) > _MAX_KEY_LENGTH:
                continue
            # A dictionary with a `_type` is an image, a table, a histogram.
            elif kind is dict and "_type" not in value:
                stack.extend((f"{key}/{k}", v, depth + 1) for k, v in reversed(value.items()))
            elif kind is list and len(value) == 1:
                stack.append((key, value[0], depth + 1))
            elif kind is list and len(value) <= _MAX_LIST:
                stack.extend((f"{key}/{i}", value[i], depth + 1) for i in reversed(range(len(value))))


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64, as 1e400 would be
        return math.inf if value > 0 else -math.inf


def without_rows(columns: Mapping[str, Column], rows: npt.NDArray[np.int64]) -> dict[str, Column]:
    """The columns without some rows; one that is empty then is left out."""
    if not len(rows):
        return dict(columns)
    out = {}
    for key, c in columns.items():
        keep = ~np.isin(c.at, rows)
        if keep.any():
            out[key] = Column(c.at[keep], c.values[keep], c.rounded)
    return out


def evaluation_notes(rows: npt.NDArray[np.int64]) -> list[str]:
    """The note on rows of an evaluation that were left out."""
    return [f"{len(rows)} rows that say they are of an evaluation were left out"] if len(rows) else []


def marks_evaluation(value: object) -> bool:
    """Whether the value of a split key is the name of an evaluation."""
    return type(value) is str and len(value) <= 100 and names.marks_evaluation(value)


def from_regular_lines(pieces: Iterable[bytes], wanted: Wanted, also: Collection[str] = ()) -> Found | None:
    """What `Records` finds in JSON lines, some ten times as fast, or None where the lines are not regular enough.

    Regular is: a flat object on each line, no other text, each key of one type. Nothing is lost unseen: every
    key-value pair of the text (every `":`) has to come out as a value or a null.

    Args:
        pieces: Whole lines, some MiB of them at a time: small enough to stay in the cache.
    """
    import polars as pl

    schema: dict[str, Any] = {}
    tables = []
    stood_in = False
    for piece in pieces:
        # One line so long is more than polars reads in sensible time and memory.
        if len(piece) > frame.PIECE_BYTES and piece.find(b"\n") < 0:
            return None
        if b"\0" in piece:
            return None
        # One byte is found many times as fast as three.
        if (b"N" in piece and b"NaN" in piece) or (b"I" in piece and b"Infinity" in piece):
            stood_in = True
            for name, (number, _) in _STAND_INS.items():
                piece = piece.replace(b": " + name, b": " + number).replace(b":" + name, b":" + number)
        try:
            table = _table(piece, schema)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return None
        if table is None:
            return None
        tables.append(table)
    if not tables:
        return None
    table = pl.concat(tables, how="diagonal")
    keys = [k for k, t in schema.items() if t != pl.Boolean]
    texts = Texts()
    columns = frame.columns_of(table, [*names.to_read(keys, wanted), *(k for k in also if k in keys)], texts)
    left_out = evaluation_rows(table, [k for k in schema if k in names.SPLIT_KEYS])
    columns = without_rows(columns, left_out)
    # In the order of first appearance, which polars does not keep.
    columns = dict(sorted(((k, c) for k, c in columns.items() if len(c.values)), key=lambda item: int(item[1].at[0])))
    if stood_in:
        columns = {k: _without_stand_ins(c) for k, c in columns.items()}
    notes, damage, empty = account(columns, texts, table.height, left_out, wanted)
    return Found(columns, evaluation_notes(left_out) + notes, damage, empty)


def evaluation_rows(table: pl.DataFrame, splits: Collection[str]) -> npt.NDArray[np.int64]:
    """The rows that say they are of an evaluation, unless all do."""
    import polars as pl

    marked = np.zeros(table.height, bool)
    for key in splits:
        if table.schema[key] == pl.String:
            marks = [text for text in table[key].unique() if marks_evaluation(text)]
            marked |= table[key].is_in(marks).fill_null(False).to_numpy()
    rows = np.flatnonzero(marked)
    return rows if len(rows) < table.height else rows[:0]


def _table(piece: bytes, schema: dict[str, Any]) -> pl.DataFrame | None:
    """A frame of these lines, or None where they are not regular. Keys that `schema` lacks are added to it."""
    import polars as pl

    num_colons = frame.count(piece, b":")
    samples: list[int | None] = [_SAMPLE_LINES, None] if not schema else [0, None]
    for sample in samples:
        if sample != 0 and not _learn(piece, sample, schema):
            return None
        try:
            table = pl.read_ndjson(piece, schema=schema)
        except pl.exceptions.ComputeError:
            continue
        found = table.height * table.width - sum(s.null_count() for s in table)
        # Texts have colons too; counting `":` takes longer, counting nulls longer still.
        if found == num_colons or found == (num_pairs := frame.count(piece, b'":')) or found == num_pairs - piece.count(b"null"):
            return table
    return None


def _learn(piece: bytes, num_lines: int | None, schema: dict[str, Any]) -> bool:
    """Add the keys of the first lines (None: of all), every number a float64; False where they are nested."""
    import polars as pl

    if num_lines is not None:
        end = -1
        for _ in range(num_lines):
            end = piece.find(b"\n", end + 1)
            if end < 0:
                break
        piece = piece[:end] if end >= 0 else piece
    found = pl.read_ndjson(piece, infer_schema_length=None).schema
    for key, kind in found.items():
        schema.setdefault(key, kind if kind in (pl.String, pl.Boolean) else pl.Float64)
    return not any(kind.is_nested() for kind in found.values())


def _without_stand_ins(column: Column) -> Column:
    values = column.values
    for number, meant in _STAND_INS.values():
        here = values == float(number)
        if here.any():
            values = np.where(here, meant, values)
    return Column(column.at, values, column.rounded)
