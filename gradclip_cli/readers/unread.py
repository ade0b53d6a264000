"""What stood in a table and could not be read: texts among numbers, columns that end early, lines of zero bytes."""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.run import GRAD_NORM, LOSS, Damage
from gradclip_cli.readers import names, numbers
from gradclip_cli.readers.log import Column, Wanted

_MAX_KEYS = 20_000
_MAX_KEY_LENGTH = 1000
_MAX_EXAMPLES = 20
_MAX_QUOTED = 40
_MAX_SHOWN = 5
# Fewer rows without a value may be an unlucky moment to stop.
_MIN_ABSENT_ROWS = 3
_LINE_END = re.compile(rb"[\r\n]")


class Texts:
    """Cells that hold text where a number may be expected, by key and row."""

    def __init__(self) -> None:
        self._rows: dict[str, array[int]] = {}
        self._examples: dict[str, dict[int, str]] = {}

    def add(self, key: str, row: int, text: str) -> None:
        """Take a cell that is no number; one that says there is no value (`numbers.is_absent`) does not count."""
        if numbers.is_absent(text):
            return
        rows = self._rows.get(key)
        if rows is None:
            if len(self._rows) >= _MAX_KEYS or len(key) > _MAX_KEY_LENGTH:
                return
            rows = self._rows[key] = array("q")
            self._examples[key] = {}
        rows.append(row)
        if len(rows) <= _MAX_EXAMPLES:
            self._examples[key][row] = text[:_MAX_QUOTED]

    def keys(self) -> Collection[str]:
        return self._rows.keys()

    def rows(self, key: str) -> npt.NDArray[np.int64]:
        return np.sort(np.array(self._rows.get(key, ()), np.int64))

    def quoted(self, key: str, rows: Iterable[int]) -> str:
        """One of these cells, for a sentence."""
        examples = self._examples[key]
        text = next((examples[row] for row in rows if row in examples), None)
        return f", such as {text!r}" if text is not None else ""


class Account(NamedTuple):
    """What the columns of a table lack; see `Log` for each."""

    notes: list[str]
    damage: list[Damage]
    empty: dict[str, str]


def account(columns: Mapping[str, Column], texts: Texts, num_rows: int, left_out: npt.NDArray[np.int64], wanted: Wanted) -> Account:
    """What the columns lack. Rows are counted from 1 here.

    Text among the numbers of a loss or a norm, and its end before the log's, are damage: a nan or an overflow may have
    been written so.

    Args:
        num_rows: Of the table, those in `left_out` included.
        left_out: Rows that count for nothing.
    """
    damage: list[Damage] = []
    empty: dict[str, str] = {}
    of_text = []
    for key in dict.fromkeys([*columns, *texts.keys()]):
        column = columns.get(key)
        rows = texts.rows(key)
        rows = rows[~np.isin(rows, left_out)] if len(left_out) else rows
        main = _is_main(key, wanted)
        if column is not None and len(column.values):
            if len(rows) and (main or len(rows) <= len(column.values)):
                quoted = texts.quoted(key, rows)
                of_text.append(f"{key!r} holds text in {_counted(len(rows))} from row {rows[0] + 1} on{quoted}: not read")
                # What stands before the first value is a heading or a setting.
                if main and len(behind := rows[rows > column.at[0]]):
                    what = f"from here on {key!r} is text in {_counted(len(behind))}{texts.quoted(key, behind)}, expected numbers"
                    damage.append(Damage(f"row {behind[0] + 1}", what, "those values", key))
            if main and not (len(rows) and rows[-1] > column.at[-1]):
                damage += _early_end(key, column, columns, num_rows, left_out)
        elif main and len(rows):
            empty[key] = f"holds no numbers{texts.quoted(key, rows[:1])} in row {rows[0] + 1}"
        elif main and not any(len(c.values) and _is_main(k, wanted) for k, c in columns.items()):
            empty[key] = "has no value in any row"
    if len(of_text) > _MAX_SHOWN:
        of_text[_MAX_SHOWN:] = [f"{len(of_text) - _MAX_SHOWN} more columns hold text among their numbers"]
    return Account(of_text, damage, empty)


def _is_main(key: str, wanted: Wanted) -> bool:
    return key in (wanted.loss, wanted.grad_norm) or names.rank(LOSS, key) is not None or names.rank(GRAD_NORM, key) is not None


def _early_end(key: str, column: Column, columns: Mapping[str, Column], num_rows: int, left_out: npt.NDArray[np.int64]) -> list[Damage]:
    """Damage where a column that was logged at some pace has no value for longer than that at the end.

    Some writers leave a nan blank, so that a run that died of it would look like one that ended well.

    Only rows that go on in steps count: those of an evaluation repeat the step they stand behind.
    """
    if num_rows - 1 - int(column.at[-1]) < _MIN_ABSENT_ROWS:
        return []
    kept = np.ones(num_rows, bool)
    kept[left_out] = False
    goes_on = kept.copy()
    counter = _step_key(columns, num_rows)
    if counter is not None:
        step = columns[counter]
        at = step.at[kept[step.at]]
        values = step.values[kept[step.at]]
        goes_on[:] = False
        goes_on[at[:1]] = True
        goes_on[at[1:][values[1:] != values[:-1]]] = True
    rows_so_far = np.cumsum(goes_on)
    absent = int(rows_so_far[-1] - rows_so_far[column.at[-1]])
    pace = np.diff(rows_so_far[column.at], prepend=0)
    if absent < _MIN_ABSENT_ROWS or absent <= np.quantile(pace, 0.9):
        return []
    first = int(np.flatnonzero(goes_on)[-absent])
    at_step = "" if counter is None else f" ({counter!r} {step.values[np.searchsorted(step.at, first)]:.15g})"
    what = f"from here on {key!r} is blank, while the log goes on for {absent} rows"
    return [Damage(f"row {first + 1}{at_step}", what, "its values (some writers leave nan blank)", key)]


def _step_key(columns: Mapping[str, Column], num_rows: int) -> str | None:
    ranked = [(r, k) for k, c in columns.items() if len(c.at) >= 0.5 * num_rows and (r := names.rank("step", k)) is not None]
    return min(ranked, key=lambda t: t[0])[1] if ranked else None


def _counted(num_rows: int) -> str:
    return f"{num_rows} row" if num_rows == 1 else f"{num_rows} rows"


def without_zeroed(data: bytes) -> tuple[bytes, list[Damage]]:
    """The text with each line that has a zero byte in it blanked, and the damage.

    A machine that lost power leaves blocks of zeros; what stands beside them on a line may be part of a row.
    """
    at = data.find(0)
    if at < 0:
        return data, []
    kept: list[bytes] = []
    damage: list[Damage] = []
    end, line, num_lines = 0, 1, 0
    while at >= 0:
        start = 1 + max(data.rfind(b"\n", end, at), data.rfind(b"\r", end, at), end - 1)
        kept.append(data[end:start])
        line += data.count(b"\n", end, start)
        found = _LINE_END.search(data, at)
        end = found.start() if found else len(data)
        num_lines += 1
        if num_lines <= _MAX_SHOWN:
            lost = "that row" if data[start:end].strip(b"\0") else "what was to stand there"
            damage.append(Damage(f"line {line}", f"{data.count(0, start, end)} zero bytes, expected a row", lost))
        at = data.find(0, end)
    kept.append(data[end:])
    if num_lines > _MAX_SHOWN:
        damage.append(Damage("further on", f"{num_lines - _MAX_SHOWN} more lines with zero bytes", "those rows"))
    return b"".join(kept), damage
