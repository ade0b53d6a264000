"""Tables below a header: a line of column names, then lines that hold nothing but as many cells.

`| step | loss |` and `| 10 | 2.3 |`, or columns parted by blanks: fastai, skorch, Ultralytics, the Trainer in a notebook.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import numpy as np

from gradclip_cli.readers.text.fields import Field, Layout
from gradclip_cli.readers.text.format import pattern
from gradclip_cli.readers.text.layouts import Lines, Positions, pattern_of

# What is wider is no table for people.
_MAX_WIDTH = 2000
# Bytes from a header to its first row: rules, a blank line, a frame of a bar.
_NEAR = 600

# The box-drawing bars of UTF-8.
_BARS = ("\xe2\x94\x82", "\xe2\x94\x83", "\xe2\x95\x91")
_NAME = pattern(r"[A-Za-z_%#\x80-\xff][^|=:,;?!'\"<>{}]{0,60}+")
_GAP = pattern(r"\t\s*+| {2,}+")
_WORD = pattern(r"No log|\S++")
# A number, perhaps with a unit or as a part of a total; a time; a mark that there is none.
_CELL = pattern(
    r"(?P<number>[+-]?(?:\d{1,3}(?:,\d{3})++(?:\.\d*+)?|\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?(?:[KMBk](?!\w))?+"
    r"|[+-]?(?:[nN][aA][nN]|[iI][nN][fF](?:inity)?))(?:[A-Za-z%]{1,3}|/\d++)?"
    r"|(?:\d++:){1,2}\d\d(?:\.\d++)?|[-+*]{1,3}|[nN]/?[aA]|None|No log|null"
)
# Ultralytics goes on with a bar: `640: 100%|###| 100/100`.
_TAIL = pattern(r"(?<=\d):\s++\d{1,3}%")


def header_of(line: str) -> tuple[tuple[str, ...], ...]:
    """The names in a line that holds nothing else, in each way that it can be parted: by bars, or by gaps and by blanks."""
    if len(line) > _MAX_WIDTH:
        return ()
    line = _with_plain_bars(line).strip().lstrip("#").strip()
    if "|" in line:
        ways = [[cell.strip(" *`") for cell in line.removeprefix("|").removesuffix("|").split("|")]]
    else:
        ways = [_GAP.split(line), line.split()]
    return tuple(dict.fromkeys(tuple(way) for way in ways if len(way) > 1 and all(map(_NAME.fullmatch, way))))


def may_be_row(line: str) -> bool:
    """Whether a line begins as a row does. Cheap."""
    return len(line) <= _MAX_WIDTH and line.lstrip(" \t|\xe2\x82\x83\x91\x94\x95")[:1] in "0123456789"


def row_of(line: str) -> Layout | None:
    """A line of cells, its numbers by place; None where it holds anything else."""
    text = _with_plain_bars(line)
    if tail := _TAIL.search(text):
        text = text[: tail.start()]
    if "|" in text:
        parts = text.split("|")
        cells = list(zip(accumulate((len(p) + 1 for p in parts), initial=0), parts, strict=False))
        # A table may be closed by bars on either side.
        cells = cells[not parts[0].strip() : len(cells) - (not parts[-1].strip())]
    else:
        cells = [(m.start(), m[0]) for m in _WORD.finditer(text)]
    fields: dict[str, Field] = {}
    for i, (start, cell) in enumerate(cells):
        m = _CELL.fullmatch(cell.strip())
        if m is None and cell.strip():
            return None
        if m is not None and m["number"]:
            fields[f"<{i}>"] = Field(start + len(cell) - len(cell.lstrip()), pattern_of(m["number"]))
    return Layout(fields, (), len(line), num_cells=len(cells)) if len(fields) > 1 else None


def _with_plain_bars(line: str) -> str:
    """A line of the same length with bars of ASCII."""
    if "\xe2" in line:
        for bar in _BARS:
            line = line.replace(bar, "  |")
    return line


def name_rows(lines: Lines[Layout], named: Callable[[Layout, tuple[str, ...]], Layout | None]) -> Lines[Layout]:
    """Give rows the names in the header above them; headers, and rows without one, are left out.

    A header is one where a row with as many cells follows at once; it holds until the next.

    Args:
        named: The layout of a row whose columns have these names, or None where it is none.
    """
    headers = np.array([bool(layout.header) for layout in lines.layouts], bool)
    if not headers.any():
        return lines
    rows = np.array([layout.num_cells > 0 for layout in lines.layouts], bool)
    kind = lines.layout.copy()
    at_header, at_row = np.flatnonzero(headers[kind]), np.flatnonzero(rows[kind])
    kind[at_header] = kind[at_row] = -1
    layouts = list(lines.layouts)
    known: dict[tuple[int, int], int] = {}

    def below(header: Positions, row: Positions) -> Positions:
        """The layout (index into `layouts`) of each row below each header; -1 where they do not fit."""
        pairs, inverse = np.unique(np.stack([lines.layout[header], lines.layout[row]]), axis=1, return_inverse=True)
        for h, r in pairs.T.tolist():
            if (h, r) not in known:
                names = next((way for way in layouts[h].header if len(way) == layouts[r].num_cells), None)
                layout = named(layouts[r], names) if names is not None else None
                known[h, r] = -1 if layout is None else len(layouts)
                layouts.extend([layout] if layout is not None else [])
        return np.array([known[h, r] for h, r in pairs.T.tolist()], np.int64)[inverse]

    first = np.searchsorted(at_row, at_header)
    at_header, first = at_header[first < len(at_row)], first[first < len(at_row)]
    near = lines.starts[at_row[first]] - lines.starts[at_header] <= _NEAR
    at_header, first = at_header[near], first[near]
    at_header = at_header[below(at_header, at_row[first]) >= 0]
    above = np.searchsorted(at_header, at_row) - 1
    at_row, above = at_row[above >= 0], above[above >= 0]
    kind[at_row] = below(at_header[above], at_row)
    return replace(lines, layouts=layouts, starts=lines.starts[kind >= 0], layout=kind[kind >= 0])
