"""Tables of text: a header row and a row of cells a line, parted by commas, tabs or semicolons."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import Damage
from gradclip_cli.readers import frame, names, numbers
from gradclip_cli.readers.log import Column, Log, Reader, Source, Wanted
from gradclip_cli.readers.open import HEAD_BYTES
from gradclip_cli.readers.records import evaluation_notes, evaluation_rows, marks_evaluation, without_rows
from gradclip_cli.readers.unread import Texts, account, without_zeroed

if TYPE_CHECKING:
    import polars as pl

_DELIMITERS = (",", "\t", ";")
_SAMPLE_LINES = 60
_SAMPLE_CELLS = 3000
_MAX_HEADER_BYTES = 4 << 20
_MAX_LINE = 1 << 20
_BATCH_ROWS = 1000
# Rows of another width are damage while they are few; many are a way of writing.
_FEW_FRACTION = 0.01
_FEW_ROWS = 3
_MAX_SHOWN_DAMAGE = 5

_NAME = re.compile(r"[^{}<>\n]{1,300}")
_DECIMAL_COMMA = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+(?:[eE][+-]?\d+)?")
# 1.234.567 or 1.234,5 beside decimal commas.
_DOT_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+(?:,\d*)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")
_SEPARATOR_LINE = re.compile(r"sep=.")
_MAY_BE_DOT_THOUSANDS = re.compile(rb"\d\.\d{3}")
_DECIMAL_POINT = re.compile(r"\d\.\d")
# A value within a text: what a line of a text log has in its first cells, and a header has not.
_VALUE = re.compile(r"[\s:=]\d")


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a table is written.

    Attributes:
        delimiter: Between cells.
        names: The header's cells, each once.
        skip: Lines up to and including the header.
        decimal_comma: 0,5 is a half.
        notes: What the header left to guess.
    """

    delimiter: str
    names: list[str]
    skip: int
    decimal_comma: bool
    notes: tuple[str, ...]


class _Tangled(Exception):
    """A quote that is never closed swallowed lines: cells do not span lines in this file."""


# The shape -----------------------------------------------------------------------------------------------------------


def _claims(source: Source) -> bool:
    lines = source.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if len(source.head) >= HEAD_BYTES and len(lines) > 1:
        lines.pop()
    return _shape(lines[:_SAMPLE_LINES]) is not None


def _shape_of(source: Source, data: bytes) -> _Shape:
    lines: list[str] = []
    start = 0
    while len(lines) < _SAMPLE_LINES and start < len(data):
        end = data.find(b"\n", start, start + _MAX_HEADER_BYTES)
        if end < 0:
            if len(data) - start > _MAX_HEADER_BYTES:
                if not lines:
                    raise GradclipError(f"{source.path}: the first line exceeds {_MAX_HEADER_BYTES >> 20} MiB; expected a header row")
                break
            end = len(data)
        lines.append(data[start:end].decode("utf-8", "replace"))
        start = end + 1
    if len(lines) == 1 and "\r" in lines[0].rstrip("\r"):
        lines = lines[0].split("\r")[:_SAMPLE_LINES]
    shape = _shape([line.rstrip("\r") for line in lines])
    if shape is None:
        raise GradclipError(f"{source.path}: no header row with rows of numbers below it; expected a table")
    return shape


def _shape(lines: Sequence[str]) -> _Shape | None:
    """The shape of the table these first lines belong to, or None where they are no table."""
    rows = [i for i, line in enumerate(lines) if line.strip() and not line.startswith("#") and not _SEPARATOR_LINE.fullmatch(line.strip())]
    if not rows:
        return None
    headers = [(rows[0], lines[rows[0]], rows[1:])]
    # numpy.savetxt and others write the header as a comment.
    if rows[0] and lines[rows[0] - 1].startswith("#"):
        headers.append((rows[0] - 1, lines[rows[0] - 1].lstrip("# "), rows))
    tables = [
        shape
        for at, header, below in headers
        for delimiter in _DELIMITERS
        if (shape := _table(delimiter, header, [lines[i] for i in below], at + 1)) is not None
    ]
    return max(tables, key=lambda t: len(t.names), default=None)


def _table(delimiter: str, header: str, lines: Sequence[str], skip: int) -> _Shape | None:
    raw = _cells(header, delimiter)
    if len(raw) > 1 and not raw[-1]:  # a delimiter at the end of each line
        raw = raw[:-1]
    if sum(_is_name(n) for n in raw) < max(1, 0.5 * len(raw)):
        return None
    if len(raw) == 1 and (any(d in header for d in _DELIMITERS) or not names.worth_reading(raw[0], Wanted())):
        return None
    lines = lines[: max(3, _SAMPLE_CELLS // len(raw))]
    sample = [cells for line in lines if (cells := _cells(line, delimiter)) and cells[: len(raw)] != raw]
    decimal_comma = delimiter != "," and _has_decimal_comma([c for cells in sample for c in cells if c])
    if not sample:
        # A header alone, or one that was written again and again.
        is_header = len(raw) > 1 and any(map(names.is_evidence, raw)) and all(_NAME.fullmatch(n) for n in raw if n)
        if not is_header or any(map(_VALUE.search, raw)):
            return None
    elif not _fits(raw, sample, decimal_comma):
        # Quoted cells may span lines; the last one is cut in this sample.
        sample = list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))[:-1] if '"' in "".join(lines) else []
        if not sample or not _fits(raw, sample, decimal_comma):
            return None
    unique, notes = _unique(raw)
    if decimal_comma:
        notes.append("numbers are written with a decimal comma")
    return _Shape(delimiter, unique, skip, decimal_comma, tuple(notes))


def _fits(header: Sequence[str], rows: Sequence[Sequence[str]], decimal_comma: bool) -> bool:
    """Whether the rows are as wide as the header, or as one another, and hold numbers."""
    widths = [len(cells) for cells in rows]
    usual = sum(w in (len(header), len(header) + 1) for w in widths)
    if usual < 0.5 * len(rows) and (len(set(widths)) > 1 or widths[0] < 2):
        return False
    return _numeric(header, rows, decimal_comma)


def _is_name(cell: str) -> bool:
    return _NAME.fullmatch(cell) is not None and numbers.parse(cell) is None


def _cells(line: str, delimiter: str) -> list[str]:
    if '"' not in line:
        return [c.strip() for c in line.split(delimiter)]
    try:
        return [c.strip() for c in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])]
    except csv.Error:
        return []


def _has_decimal_comma(texts: Sequence[str]) -> bool:
    with_comma = [t for t in texts if _DECIMAL_COMMA.fullmatch(t)]
    if all(_THOUSANDS.fullmatch(t) for t in with_comma):
        return False
    with_both = any("." in t for t in with_comma)
    return not any(_DECIMAL_POINT.search(t) and not (with_both and _DOT_THOUSANDS.fullmatch(t)) for t in texts)


def _with_point(cell: str) -> str:
    """A number with a decimal comma, and dots between thousands, as other people write it."""
    if "." in cell and _DOT_THOUSANDS.fullmatch(cell.strip()):
        cell = cell.replace(".", "")
    return cell.replace(",", ".")


def _numeric(header: Sequence[str], rows: Sequence[Sequence[str]], decimal_comma: bool) -> bool:
    """Whether this is a table of numbers: most cells are, or a column that is called like a series is."""
    num_filled = num_numeric = 0
    known = False
    for j, name in enumerate(header):
        cells = [row[j] for row in rows if j < len(row) and row[j]]
        good = sum(numbers.parse(_with_point(c) if decimal_comma else c) is not None for c in cells)
        num_filled += len(cells)
        if _is_name(name) and good >= 0.7 * len(cells):
            num_numeric += good
            known = known or (good > 0 and names.worth_reading(name, Wanted()))
    return num_numeric > 0.5 * num_filled or known or not num_filled


def _unique(raw: Sequence[str]) -> tuple[list[str], list[str]]:
    seen: dict[str, int] = {}
    out = []
    for j, name in enumerate(raw, 1):
        name = name or f"column {j}"
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    repeated = [n for n, k in seen.items() if k > 1]
    return out, [f"the header names {k!r} more than once; the later ones are called {k + ' (2)'!r} and so on" for k in repeated[:1]]


# Reading -------------------------------------------------------------------------------------------------------------


def _read(source: Source, wanted: Wanted) -> Log:
    regular = _read_regular(source, wanted) if frame.is_large(source) else None
    return regular if regular is not None else _read_any(source, wanted)


def _read_any(source: Source, wanted: Wanted) -> Log:
    data, damage = without_zeroed(source.read_utf8())
    shape = _shape_of(source, data)
    chosen = _chosen(source, shape, wanted)
    if (start := _cut_line(data, shape)) is not None:
        damage.append(_cut_damage(data[start:], data.count(b"\n", 0, start) or data.count(b"\r", 0, start), shape))
        data = data[:start]
    try:
        table = _collect(data, shape, chosen, quotes=b'"' in data)
    except (_Tangled, csv.Error):
        table = _collect(data, shape, chosen, quotes=True, each_line=True)
    damage += table.damage
    if not table.num_rows:
        what = f"no rows that can be read ({damage[0].where}: {damage[0].what})" if damage else "no rows"
        raise GradclipError(f"{source.path}: a header and {what}; expected a row a step", hint="has the run logged anything yet?")
    left_out = table.left_out()
    columns = without_rows({key: g.column() for key, g in table.growing.items()}, left_out)
    unread, damaged, empty = account(columns, table.texts, table.num_rows, left_out, wanted)
    notes = (*shape.notes, *table.notes, *evaluation_notes(left_out), *unread)
    return Log("csv", columns, damage=(*damage, *damaged), notes=notes, empty=empty)


def _chosen(source: Source, shape: _Shape, wanted: Wanted) -> list[str]:
    chosen = [k for k in names.to_read(shape.names, wanted) if k.lower() not in names.SPLIT_KEYS]
    if not chosen:
        raise GradclipError(f"{source.path}: no column of numbers among {', '.join(shape.names[:5])!r}; expected a loss or a gradient norm")
    return chosen


def _cut_line(data: bytes, shape: _Shape) -> int | None:
    """Where a last line begins that was not written to its end, or None."""
    if data.endswith((b"\n", b"\r")):
        return None
    start = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    if len(data) - start > _MAX_LINE or not data[start:].strip():
        return None
    is_row = not shape.skip or 0 < _offset_of_line(data, shape.skip) <= start
    return start if is_row and len(_cells(data[start:].decode("utf-8", "replace"), shape.delimiter)) < len(shape.names) else None


def _cut_damage(line: bytes, num_lines_before: int, shape: _Shape) -> Damage:
    width = len(_cells(line.decode("utf-8", "replace"), shape.delimiter))
    return Damage(f"line {num_lines_before + 1}", f"the last line ends after {width} of {len(shape.names)} cells", "that row")


def _offset_of_line(data: bytes, number: int) -> int:
    """Where a line begins, counted from 0; 0 where there are not so many (or they end in a mere carriage return)."""
    at = 0
    for _ in range(number):
        at = data.find(b"\n", at) + 1
        if not at:
            break
    return at


def _read_regular(source: Source, wanted: Wanted) -> Log | None:
    """What `_read_any` gives, through polars, or None where a cell is neither a number nor blank or a row is not full."""
    import polars as pl

    tables: list[pl.DataFrame] = []
    damage: list[Damage] = []
    shape: _Shape | None = None
    for piece in frame.pieces(source):
        if shape is None:
            shape = _shape_of(source, piece)
            chosen = _chosen(source, shape, wanted)
            splits = [name for name in shape.names if name.lower() in names.SPLIT_KEYS]
            skip = shape.skip
        if not piece.endswith(b"\n") and (start := _cut_line(piece, replace(shape, skip=skip))) is not None:
            damage.append(_cut_damage(piece[start:], sum(frame.count(p, b"\n") for p in frame.pieces(source)), shape))
            piece = piece[:start]
        if piece:
            table = _regular_piece(piece, shape, skip, {*chosen, *splits}, splits)
            if table is None:
                return None
            tables.append(table)
        skip = 0
    if shape is None or not tables:
        return None
    table = pl.concat(tables)
    left_out = evaluation_rows(table, splits)
    texts = Texts()
    columns = without_rows(frame.columns_of(table, chosen, texts), left_out)
    unread, damaged, empty = account(columns, texts, table.height, left_out, wanted)
    notes = (*shape.notes, *evaluation_notes(left_out), *unread)
    return Log("csv", columns, damage=(*damage, *damaged), notes=notes, empty=empty)


def _regular_piece(piece: bytes, shape: _Shape, skip: int, chosen: set[str], texts: Sequence[str]) -> pl.DataFrame | None:
    import polars as pl

    width = len(shape.names)
    if width < 2 or b"\0" in piece or (b"\r" in piece and frame.count(piece, b"\r") != frame.count(piece, b"\r\n")):
        return None
    delimiter = shape.delimiter.encode()
    num_delimiters = frame.count(piece, delimiter) - piece.count(delimiter, 0, _offset_of_line(piece, skip))
    # A line with cells without end takes polars hundreds of times its size.
    if num_delimiters > (frame.count(piece, b"\n") + 1) * (width - 1):
        return None
    # polars takes every dot for a decimal point.
    if shape.decimal_comma and b"." in piece and _MAY_BE_DOT_THOUSANDS.search(piece):
        return None
    try:
        table = pl.read_csv(
            piece,
            has_header=False,
            skip_lines=skip,
            separator=shape.delimiter,
            schema={name: pl.Float64 if name in chosen and name not in texts else pl.String for name in shape.names},
            columns=[j for j, name in enumerate(shape.names) if name in chosen],
            decimal_comma=shape.decimal_comma,
            encoding="utf8-lossy",
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    return table if table.height and num_delimiters == table.height * (width - 1) else None


@dataclass(eq=False, slots=True)
class _Growing:
    """One column while it is read."""

    key: str
    texts: Texts
    at: list[npt.NDArray[np.int64]] = field(default_factory=list)
    values: list[npt.NDArray[np.float64]] = field(default_factory=list)
    rounded: bool = False

    def extend(self, rows: npt.NDArray[np.int64], cells: Sequence[str], decimal_comma: bool) -> None:
        if decimal_comma:
            cells = [_with_point(c) for c in cells]
        try:
            self.values.append(np.array(list(map(float, cells))))
            self.at.append(rows)
            return
        except ValueError:  # a blank, or a number that Python writes otherwise
            pass
        at: list[int] = []
        values: list[float] = []
        for i, cell in enumerate(cells):
            if not cell:
                continue
            try:
                values.append(float(cell))
            except ValueError:
                number = numbers.parse(cell)
                if number is None:
                    self.texts.add(self.key, int(rows[i]), cell)
                    continue
                self.rounded = self.rounded or number.rounded
                values.append(number.value)
            at.append(i)
        self.at.append(rows[at])
        self.values.append(np.array(values, np.float64))

    def column(self) -> Column:
        at, values = np.concatenate([np.empty(0, np.int64), *self.at]), np.concatenate([np.empty(0), *self.values])
        # Rows of another width come last.
        if len(at) > 1 and (np.diff(at) < 0).any():
            order = np.argsort(at, kind="stable")
            at, values = at[order], values[order]
        return Column(at, values, self.rounded)


@dataclass(eq=False, slots=True)
class _Table:
    """What `_collect` found."""

    growing: dict[str, _Growing]
    texts: Texts
    num_rows: int = 0
    evaluations: list[int] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def left_out(self) -> npt.NDArray[np.int64]:
        # Where everything is called a test, that is the name of the run.
        rows = np.unique(np.array(self.evaluations, np.int64))
        return rows if len(rows) < self.num_rows else rows[:0]


@dataclass(frozen=True, slots=True)
class _OddRow:
    """A row of another width than the header's."""

    row: int
    line: int
    found: int
    expected: int
    cells: dict[str, str]


def _collect(data: bytes, shape: _Shape, chosen: Sequence[str], *, quotes: bool, each_line: bool = False) -> _Table:
    """Every row, whatever its shape.

    A line of the header's names in the middle (a run appended to another) may bring a new order of columns.

    Raises:
        _Tangled: Where quoted cells span lines and the rows do not fit, unless `each_line`.
    """
    texts = Texts()
    table = _Table({key: _Growing(key, texts) for key in chosen}, texts)
    lines = _lines(data, shape, table.damage)
    if each_line:
        rows: Iterator[list[str]] = (_cells(line, shape.delimiter) for line in lines)
    elif quotes:
        rows = csv.reader(lines, delimiter=shape.delimiter, skipinitialspace=True)
    else:
        rows = csv.reader(lines, delimiter=shape.delimiter, quoting=csv.QUOTE_NONE)
    layout = {key: shape.names.index(key) for key in chosen}
    splits = [j for j, key in enumerate(shape.names) if key.lower() in names.SPLIT_KEYS]
    width = len(shape.names)
    line = shape.skip
    odd: list[_OddRow] = []
    num_headers = 1

    def put(batch: Sequence[Sequence[str]], at: npt.NDArray[np.int64]) -> None:
        for key, j in layout.items():
            table.growing[key].extend(at, [cells[j] for cells in batch], shape.decimal_comma)
        for j in splits:
            table.evaluations += [int(row) for row, cells in zip(at, batch, strict=True) if marks_evaluation(cells[j].strip())]

    while batch := list(islice(rows, _BATCH_ROWS)):
        probe = min(layout.values())
        if set(map(len, batch)) == {width} and max(cells[probe].strip() for cells in batch) < "A":
            put(batch, np.arange(table.num_rows, table.num_rows + len(batch)))
            table.num_rows += len(batch)
            line += len(batch)
            continue
        good: list[list[str]] = []
        at: list[int] = []
        for cells in batch:
            line += 1
            if len(cells) > width and not any(c.strip() for c in cells[width:]):
                del cells[width:]
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if probe < len(cells) and cells[probe].strip() >= "A" and (new := _header(cells, chosen)) is not None:
                put(good, np.array(at, np.int64))
                good, at = [], []
                layout, width, probe = new, len(cells), min(new.values())
                splits = [j for j, key in enumerate(cells) if key.strip().lower() in names.SPLIT_KEYS]
                num_headers += 1
                continue
            if len(cells) == width:
                good.append(cells)
                at.append(table.num_rows)
            elif quotes and not each_line:
                raise _Tangled
            else:
                odd.append(_OddRow(table.num_rows, line, len(cells), width, {key: cells[j] for key, j in layout.items() if j < len(cells)}))
            table.num_rows += 1
        put(good, np.array(at, np.int64))
    if num_headers > 1:
        table.notes.append(f"the header stands {num_headers} times in the file: several runs were appended to one another")
    _place(odd, table, shape)
    return table


def _place(odd: Sequence[_OddRow], table: _Table, shape: _Shape) -> None:
    """Few rows of another width were cut or ran into one another; many are how this table is written."""
    if not odd:
        return
    if len(odd) <= max(_FEW_ROWS, _FEW_FRACTION * table.num_rows) and len(odd) < 0.5 * table.num_rows:
        table.damage += [Damage(f"line {o.line}", f"{o.found} cells, expected {o.expected}", "that row") for o in odd[:_MAX_SHOWN_DAMAGE]]
        if len(odd) > _MAX_SHOWN_DAMAGE:
            more, line = len(odd) - _MAX_SHOWN_DAMAGE, odd[_MAX_SHOWN_DAMAGE].line
            table.damage.append(Damage(f"line {line} and after", f"{more} more rows too short or too long", "those rows"))
        return
    table.notes.append(f"{len(odd)} rows have more or fewer cells than the header; their cells were taken from the left")
    for key, growing in table.growing.items():
        there = [o for o in odd if key in o.cells]
        growing.extend(np.array([o.row for o in there], np.int64), [o.cells[key] for o in there], shape.decimal_comma)


def _header(cells: Sequence[str], chosen: Sequence[str]) -> dict[str, int] | None:
    """Where the chosen columns stand after a header row, or None where the row is none."""
    own = [c.strip() for c in cells]
    if any(c and (numbers.parse(c) is not None or not _NAME.fullmatch(c)) for c in own):
        return None
    unique, _ = _unique(own)
    layout = {key: unique.index(key) for key in chosen if key in unique}
    return layout if len(layout) >= 0.5 * len(chosen) else None


def _lines(data: bytes, shape: _Shape, damage: list[Damage]) -> Iterator[str]:
    """The lines below the header, comments and lines of an absurd length blanked."""
    longest = max(_MAX_LINE, 50 * sum(len(n) + 1 for n in shape.names))
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    lengths = np.diff(ends, prepend=-1, append=len(data))
    lines: Iterator[str] = io.TextIOWrapper(io.BytesIO(data), "utf-8", "replace")
    if (lengths > longest).any() or b"\n#" in data:
        lines = (_plain(number, line, longest, damage) for number, line in enumerate(lines, 1))
    return islice(lines, shape.skip, None)


def _plain(number: int, line: str, longest: int, damage: list[Damage]) -> str:
    if len(line) > longest:
        damage.append(Damage(f"line {number}", f"{len(line)} characters, expected a row of cells", "that row"))
        return "\n"
    return "\n" if line.startswith("#") else line


READER = Reader("csv", "tables of comma, tab or semicolon separated values with a header row", _claims, _read)
