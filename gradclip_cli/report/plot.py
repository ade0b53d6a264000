"""Loss and gradient norm as a picture, PNG or SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradclip_cli.model.finding import Analysis, Verdict
from gradclip_cli.report import wording
from gradclip_cli.report.canvas import ALARM, ALARM_TEXT, DPI, GRID, QUIET, SERIES, TEXT, USUAL, Place, write_picture
from gradclip_cli.report.decimate import Floats, line, since
from gradclip_cli.report.escape import visible
from gradclip_cli.report.panel import Panel, panels, step_range
from gradclip_cli.report.ticks import step_ticks, value_ticks
from gradclip_cli.wording import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
_WIDTH, _LEFT, _RIGHT = 10.0, 0.72, 0.35
_PANEL, _HEAD, _LABELS, _BETWEEN = 2.05, 0.3, 0.34, 0.1
_TITLE, _AXIS, _FOOT, _GUTTER = 0.42, 0.5, 0.3, 0.35
_LINE = 0.19
_MOST_RUNS = 6
_MOST_LABELS = 8
_LABEL_SIZE = 8
# Width of a character of DejaVu Sans, roughly, as a part of its size.
_EM = 0.54
# Characters of a title and of a sentence to an inch.
_BOLD, _PLAIN = 9.0, 14.5
_SAMPLE = 10_000
_MOST_GUIDES = 60
_GRAVEST = (Verdict.DIVERGED, Verdict.NONFINITE, Verdict.SPIKED, Verdict.EXPLODED, Verdict.CANNOT_JUDGE, Verdict.STABLE)


def plot(analyses: Sequence[Analysis], path: Path, *, force: bool = False) -> None:
    """Draw the runs into a file that appears complete or not at all.

    A run is a pair of panels on a common step axis, the loss above and the gradient norm below, with
    the usual level, the band up to the alarm bound, events, values that are not finite and `max_norm`.
    Of more than six runs the six gravest are drawn.

    Raises:
        UsageError: As `check_plot_target`.
        GradclipError: The file cannot be written.
    """
    write_picture(path, lambda figure: _compose(figure, analyses), force=force)


def _compose(figure: Figure, analyses: Sequence[Analysis]) -> None:
    """Lay the runs out: one below its sentence, several in two columns."""
    chosen = sorted(range(len(analyses)), key=lambda i: _GRAVEST.index(analyses[i].verdict))[:_MOST_RUNS]
    shown = [(analyses[i], panels(analyses[i])) for i in sorted(chosen)]
    names = wording.short_sources([a for a, _ in shown])
    columns = min(len(shown), 2)
    width = _WIDTH if columns == 1 else 1.5 * _WIDTH
    cell = (width - _RIGHT - columns * _LEFT - (columns - 1) * _GUTTER) / max(columns, 1)
    sentences = [textwrap.wrap(visible(wording.headline(a)), int(cell * _PLAIN))[:3] for a, _ in shown]
    heights = [_TITLE + _LINE * len(lines) + sum(map(_panel_height, p)) + _AXIS for (_, p), lines in zip(shown, sentences, strict=True)]
    rows = [max(heights[i : i + columns]) for i in range(0, len(shown), max(columns, 1))]
    height = sum(rows) + _FOOT + 0.1
    figure.set_size_inches(width, height)
    place = Place(figure, width, height)
    for i, ((analysis, parts), lines) in enumerate(zip(shown, sentences, strict=True)):
        left = _LEFT + (i % columns) * (cell + _LEFT + _GUTTER)
        top = 0.1 + sum(rows[: i // columns])
        title = f"{analysis.verdict.value.upper()} · "
        title += visible(names[i], int(cell * _BOLD) - len(title))
        place.text(left, top + 0.24, title, fontsize=12, fontweight="bold")
        _run(place, analysis, parts, lines, left, top + _TITLE, cell)
    footer = f"{len(shown)} of {len(analyses)} runs, the gravest verdicts" if len(shown) < len(analyses) else ""
    _legend(place, [p for _, parts in shown for p in parts], footer)


def _panel_height(panel: Panel) -> float:
    return _BETWEEN + _HEAD + (_LABELS if panel.marks else 0) + _PANEL


def _run(place: Place, analysis: Analysis, parts: list[Panel], sentence: list[str], left: float, top: float, width: float) -> None:
    run = analysis.run
    for i, text in enumerate(sentence):
        place.text(left, top + _LINE * i + 0.06, text, color=QUIET)
    top += _LINE * len(sentence)
    if not parts:
        place.text(left, top + 0.3, "Nothing to draw: neither a loss nor a gradient norm was read.")
        return
    first, last = step_range(run, parts)
    span = max(float(last - first), 1.0)
    for panel in parts:
        top += _BETWEEN + _HEAD
        place.text(left, top - 0.12, panel.title, fontsize=10, fontweight="bold")
        remarks = _remarks(panel)
        after = 0.1 * len(panel.title) + 0.12
        room = int((width - after) / (_EM * 9 / 72) - len(remarks))
        place.text(left + after, top - 0.12, visible(panel.series.key, max(room - 4, 8)), color=QUIET)
        place.text(left + width, top - 0.12, remarks, color=QUIET, ha="right")
        top += _LABELS if panel.marks else 0
        axes = place.axes(left, top, width, _PANEL)
        axes.set_xlim(-0.01 * span, 1.01 * span)
        _draw(axes, panel, analysis, first, width)
        top += _PANEL
        axes.set_xticks(*step_ticks(first, last, max(int(width / (_EM * 8.5 / 72 * len(f"{last:,}") + 0.5)), 1)))
        axes.tick_params(axis="x", labelbottom=panel is parts[-1], length=3)
    axes.set_xlabel("step" if run.steps_known else "row (the log has no steps)", fontsize=8.5)


def _remarks(panel: Panel) -> str:
    """What the panel says in words, at its upper right."""
    values = panel.series.values
    bad = int((~np.isfinite(values)).sum())
    low = int((values[np.isfinite(values)] <= 0).sum()) if panel.scale.kind == "log" else 0
    parts = [
        f"{len(panel.marks):,} {panel.event[len(panel.marks) > 1]}" if panel.marks else "",
        f"{bad:,} not finite" if bad else "",
        f"{low:,} zero or below (lowest)" if low else "",
        f"{panel.clipped_fraction:.1%} above max_norm" if panel.clipped_fraction is not None else "",
        {"linear": "", "log": "log scale", "asinh": "asinh scale"}[panel.scale.kind],
    ]
    return " · ".join(filter(None, parts))


def _draw(axes: Axes, panel: Panel, analysis: Analysis, first: int, width: float) -> None:
    num_bins = int(width * DPI)
    values, scale = panel.series.values, panel.scale
    x = since(panel.series.steps, first)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    low, high = _limits(panel)
    axes.set_ylim(low, high)
    axes.set_yticks(*value_ticks(scale, low, high) if np.isfinite(values).any() else ([], []))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    if panel.baseline is not None:
        # Smooth, unlike what was logged: a point a column of pixels is enough.
        at = np.unique(np.searchsorted(x, np.linspace(x[0], x[-1], num_bins)))
        level, bound = scale.height(panel.baseline.level[at]), scale.height(panel.baseline.bound[at])
        axes.fill_between(x[at], level, bound, color=USUAL, alpha=0.1, linewidth=0)
        axes.plot(x[at], level, color=USUAL, linewidth=1.2, zorder=3)
    px, py = line(x, values, num_bins)
    isolated = len(px) <= 60
    axes.plot(px, scale.height(py), color=SERIES, linewidth=0.8, marker="o" if isolated else "", markersize=3)
    _max_norm_line(axes, panel)
    _guides(axes, panel, analysis, first)
    _events(axes, panel, x, width)
    _edges(axes, panel, x, num_bins)
    if not np.isfinite(values).any():
        axes.text(0.5, 0.5, "no finite value was logged", transform=axes.transAxes, ha="center", va="center", color=QUIET)


def _limits(panel: Panel) -> tuple[float, float]:
    """The range of heights: every finite value, `max_norm`, and the alarm bound where it usually is."""
    finite = panel.series.values[np.isfinite(panel.series.values)]
    shown = [finite.min(), finite.max()] if len(finite) else []
    if panel.max_norm is not None:
        shown.append(panel.max_norm)
    if panel.baseline is not None and len(bound := panel.baseline.bound[np.isfinite(panel.baseline.bound)]):
        shown.append(2 * np.median(bound[:: max(1, len(bound) // _SAMPLE)] / 2))
    heights = panel.scale.height(np.asarray(shown or [0.0, 1.0], np.float64))
    low, high = float(heights.min()), float(heights.max())
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * size or high == low:
        margin = 0.3 if panel.scale.kind == "log" else 0.5 * size or 1.0
    else:
        margin = 0.06 * (high - low)
    return low - margin, high + margin


def _max_norm_line(axes: Axes, panel: Panel) -> None:
    if panel.max_norm is None:
        return
    height = float(panel.scale.height(np.array([panel.max_norm]))[0])
    axes.axhline(height, color=TEXT, linewidth=1, linestyle=(0, (5, 3)))
    label = f"max_norm {number(panel.max_norm, 4)}"
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0}
    axes.annotate(
        label,
        (1, height),
        (0, 2),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8,
        bbox=box,
    )


def _events(axes: Axes, panel: Panel, x: Floats, width: float) -> None:
    """The events: the line in the alarm's colour, a triangle above the panel, labels where there is room."""
    if not panel.marks:
        return
    values, scale = panel.series.values, panel.scale
    pieces = []
    for mark in panel.marks:
        # One point more on either side, or an event of one point would have no line.
        part = slice(max(mark.first - 1, 0), mark.last + 2)
        pieces.append(np.stack(line(x[part], values[part], 400)))
        pieces.append(np.full((2, 1), np.nan))
        if mark.fatal:
            axes.axvspan(x[mark.first], x[mark.last], color=ALARM, alpha=0.07, linewidth=0)
    px, py = np.concatenate(pieces, axis=1)
    axes.plot(px, scale.height(py), color=ALARM, linewidth=1.1)
    peaks = np.array([m.peak for m in panel.marks])
    axes.plot(x[peaks], scale.height(values[peaks]), "o", color=ALARM, markersize=3.5, markeredgewidth=0)
    above = axes.get_xaxis_transform()
    at = x[[m.at for m in panel.marks]]
    axes.plot(at, np.full(len(at), 1.035), "v", color=ALARM, markersize=6, markeredgewidth=0, transform=above, clip_on=False)
    low, high = axes.get_xlim()
    taken: list[tuple[float, float]] = []
    for mark in sorted(panel.marks, key=lambda m: -m.size):
        place = (float(x[mark.at]) - low) / (high - low)
        extent = len(mark.label) * _EM * _LABEL_SIZE / 72 / width
        rightwards = place + extent < 1.01
        start, end = (place, place + extent) if rightwards else (place - extent, place)
        if any(start < b + 0.015 and a - 0.015 < end for a, b in taken) or len(taken) == _MOST_LABELS:
            continue
        taken.append((start, end))
        side = "left" if rightwards else "right"
        axes.text(place, 1.095, mark.label, transform=axes.transAxes, fontsize=_LABEL_SIZE, color=ALARM_TEXT, ha=side)


def _guides(axes: Axes, panel: Panel, analysis: Analysis, first: int) -> None:
    """Thin vertical lines at the events; in the loss panel also at the explosion that led a spike."""
    if len(panel.marks) > _MOST_GUIDES:
        return
    x = since(panel.series.steps, first)
    for mark in panel.marks:
        axes.axvline(x[mark.at], color=ALARM, linewidth=0.7, alpha=0.35)
    run, found = analysis.run, analysis.detection
    if panel.series is run.loss and run.grad_norm is not None:
        led = [found.explosions[s.led_by].peak for s in found.spikes if s.led_by is not None]
        for at in since(run.grad_norm.steps[led], first):
            axes.axvline(at, color=ALARM, linewidth=0.7, alpha=0.6, linestyle=(0, (2, 2)))


def _edges(axes: Axes, panel: Panel, x: Floats, num_bins: int) -> None:
    """Values that are not finite: crosses at the upper edge for nan and inf, at the lower for -inf."""
    values = panel.series.values
    along = axes.get_xaxis_transform()
    low, high = axes.get_xlim()
    for where, height in ((~np.isfinite(values) & (values != -np.inf), 0.97), (values == -np.inf, 0.03)):
        # One marker a column of five pixels is enough.
        columns = np.unique(np.floor((x[where] - low) / (high - low) * num_bins / 5))
        places = (columns + 0.5) * 5 / num_bins * (high - low) + low
        axes.plot(places, np.full(len(places), height), "x", color=TEXT, markersize=5, markeredgewidth=1.1, transform=along)


def _legend(place: Place, drawn: list[Panel], footer: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Line2D([], [], color=SERIES, linewidth=1.2, label="logged")]
    if any(p.baseline is not None and np.isfinite(p.baseline.level).any() for p in drawn):
        handles.append(Line2D([], [], color=USUAL, linewidth=1.2, label="usual level"))
        handles.append(Patch(facecolor=USUAL, alpha=0.15, label="up to the alarm bound"))
    if any(p.marks for p in drawn):
        handles.append(Line2D([], [], color=ALARM, marker="v", markersize=6, linewidth=1.2, label="explosion, spike"))
    if any(not np.isfinite(p.series.values).all() for p in drawn):
        handles.append(Line2D([], [], color=TEXT, marker="x", markersize=5, linewidth=0, label="not a finite number"))
    if drawn:
        corner = (1 - _RIGHT / place.width, 0.04 / place.height)
        place.figure.legend(
            handles=handles, loc="lower right", bbox_to_anchor=corner, ncols=len(handles), frameon=False, fontsize=8.5, labelcolor=QUIET
        )
    place.text(_LEFT, place.height - 0.14, footer, color=QUIET)
