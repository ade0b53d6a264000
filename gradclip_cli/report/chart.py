"""Loss and gradient norm as a small picture of braille dots, 2 by 4 to a character."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.finding import Analysis
from gradclip_cli.model.run import Run
from gradclip_cli.report.decimate import Floats, line, since
from gradclip_cli.report.escape import visible
from gradclip_cli.report.panel import Panel, panels, step_range
from gradclip_cli.wording import number

Segment = tuple[str, str]
"""A piece of text and its style: "", "dim", "bold" or "red"."""

# Bit of a dot in U+2800 + bits, by row and column.
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint8)


_SHORTEST_KEY = 8


def chart(analysis: Analysis, *, width: int, rows: int = 6) -> list[list[Segment]]:
    """Lines of at most `width` characters, none where there is nothing to draw.

    Below each panel stands its axis with ▲ at every event and ━ while it lasts; × at the
    top (at the bottom for -inf) are values that are not finite.
    """
    # One point is told above the picture, and makes none.
    shown = [p for p in panels(analysis) if len(p.series) > 1]
    if not shown:
        return []
    first, last = step_range(analysis.run, shown)
    labels = [_labels(p) for p in shown]
    gutter = max(len(text) for pair in labels for text in pair) + 1
    columns = max(width - gutter, 10)
    lines = []
    for panel, (high, low) in zip(shown, labels, strict=True):
        lines.append(_title(panel, width))
        x = since(panel.series.steps, first) / max(last - first, 1)
        cells, styles = _plot(panel, x, columns, rows)
        for row in range(rows):
            label = high if row == 0 else low if row == rows - 1 else ""
            lines.append([(f"{label:>{gutter - 1}} ", "dim"), *_runs(cells[row], styles[row])])
        lines.append([(" " * gutter, ""), *_axis(panel, x, columns)])
    lines.append([(" " * gutter + _ends(analysis.run, first, last, columns), "dim")])
    return lines


def _title(panel: Panel, width: int) -> list[Segment]:
    title = panel.title
    num_bad = int((~np.isfinite(panel.series.values)).sum())
    counts = []
    if panel.marks:
        counts.append(f"▲ {len(panel.marks):,} {panel.event[len(panel.marks) > 1]}")
    if num_bad:
        counts.append(f"× {num_bad:,} not finite")
    right = "   ".join(counts)
    scale = {"linear": "", "log": ", log scale", "asinh": ", asinh scale"}[panel.scale.kind]
    room = width - len(title) - len(right) - len(scale) - 4
    left = f"  {visible(panel.series.key, room)}{scale}" if room >= _SHORTEST_KEY else ""
    return [(title, "bold"), (left, "dim"), (" " * max(width - len(title) - len(left) - len(right), 1), ""), (right, "red")]


def _labels(panel: Panel) -> tuple[str, str]:
    """The largest and the smallest finite value."""
    finite = panel.series.values[np.isfinite(panel.series.values)]
    if not len(finite):
        return "", ""
    return number(finite.max()), number(finite.min())


def _plot(panel: Panel, x: Floats, columns: int, rows: int) -> tuple[npt.NDArray[np.str_], npt.NDArray[np.str_]]:
    """Characters and styles, shape (rows, columns)."""
    values = panel.series.values
    dots = np.zeros((4 * rows, 2 * columns), bool)
    px, py = line(x, values, 2 * columns)
    if len(py):
        heights = panel.scale.height(py)
        low, high = np.nanmin(heights), np.nanmax(heights)
        level = (heights - low) / (high - low) if high > low else heights * 0 + 0.5
        _draw(dots, px * (2 * columns - 1), (1 - level) * (4 * rows - 1))
    blocks = dots.reshape(rows, 4, columns, 2)
    bits = np.einsum("rycx,yx->rc", blocks.astype(np.uint8), _DOTS, dtype=np.uint8)
    cells = np.where(bits, (0x2800 + bits.astype(np.uint32)).view("<U1"), " ")
    styles = np.full((rows, columns), "", dtype="<U3")
    for mark in panel.marks:
        start, stop = _columns(x[[mark.first, mark.last]], columns)
        styles[:, start : stop + 1] = "red"
    bad = ~np.isfinite(values)
    for row, where in ((0, bad & (values != -np.inf)), (rows - 1, values == -np.inf)):
        at = _columns(x[where], columns)
        cells[row, at] = "×"
        styles[row, at] = "red"
    return cells, styles


def _draw(dots: npt.NDArray[np.bool_], px: Floats, py: Floats) -> None:
    """Set the dots of a polyline given in dot coordinates; a NaN breaks it."""
    height = len(dots)
    for i in range(len(px)):
        if np.isnan(py[i]):
            continue
        dots[round(py[i]), round(px[i])] = True
        if i == 0 or np.isnan(py[i - 1]):
            continue
        start, stop = round(px[i - 1]), round(px[i])
        # The heights where the line enters and leaves each column of dots.
        edges = np.interp(np.arange(start, stop + 2) - 0.5, [px[i - 1], px[i]], [py[i - 1], py[i]]) if stop > start else py[i - 1 : i + 1]
        for column in range(start, stop + 1):
            a, b = sorted((edges[column - start], edges[column - start + 1]))
            dots[round(a) : min(round(b), height - 1) + 1, column] = True


def _axis(panel: Panel, x: Floats, columns: int) -> list[Segment]:
    marks = np.full(columns, "─", dtype="<U1")
    styles = np.full(columns, "dim", dtype="<U3")
    for mark in panel.marks:
        start, stop = _columns(x[[mark.first, mark.last]], columns)
        marks[start : stop + 1] = "━"
        styles[start : stop + 1] = "red"
    marks[_columns(x[[mark.at for mark in panel.marks]], columns)] = "▲"
    return _runs(marks, styles)


def _columns(x: Floats, columns: int) -> npt.NDArray[np.intp]:
    """The character column of places on the axis from 0 to 1: the one in which `_draw` puts their dots."""
    return (np.rint(x * (2 * columns - 1)) // 2).astype(np.intp)


def _runs(cells: npt.NDArray[np.str_], styles: npt.NDArray[np.str_]) -> list[Segment]:
    """Neighbours of one style joined."""
    cuts = [0, *(np.flatnonzero(styles[1:] != styles[:-1]) + 1).tolist(), len(cells)]
    return [("".join(cells[a:b].tolist()), str(styles[a])) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]


def _ends(run: Run, first: int, last: int, columns: int) -> str:
    left, right, middle = f"{first:,}", f"{last:,}", "step" if run.steps_known else "row"
    if first == last:
        return f"{middle} {left}"
    room = columns - len(left) - len(right)
    return f"{left}{middle if room > len(middle) + 2 else '':^{max(room, 1)}}{right}"
