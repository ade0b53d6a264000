"""Suggested thresholds as a picture: where the norms lie, what each threshold would clip, and how it moves where they drift."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradclip_cli.model.threshold import Candidate, Suggestion
from gradclip_cli.report import threshold_wording as wording
from gradclip_cli.report.canvas import ALARM, GRID, QUIET, SERIES, TEXT, USUAL, Place, write_picture
from gradclip_cli.report.decimate import Floats, line, since
from gradclip_cli.report.escape import visible
from gradclip_cli.report.panel import Scale
from gradclip_cli.report.ticks import step_ticks, value_ticks
from gradclip_cli.wording import number, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
_WIDTH, _LEFT, _RIGHT, _BETWEEN = 10.0, 0.72, 0.35, 0.75
_TITLE, _LINE, _HEAD, _PANEL, _AXIS = 0.42, 0.19, 0.72, 2.1, 0.5
_PLAIN, _BOLD = 14.5, 9.0
_MOST_RUNS = 6
_NUM_BINS, _NUM_COLUMNS = 60, 1440
_MOST_POINTS = 2000
# Beyond everything else the axis goes on so far for explosions; larger ones stand at its end.
_MOST_DECADES = 2.0
# Of the axes: rows of labels above them, the room between two labels; a character of a label in inches.
_UPPER, _LOWER, _APART = 1.13, 1.03, 0.015
_CHARACTER = 0.065
_CELL = (_WIDTH - _LEFT - _RIGHT - _BETWEEN) / 2
_MARKED = ("recommended", "own")
_AUTOCLIP, _ZCLIP = "#009e73", "#cc79a7"


def plot_thresholds(suggestions: Sequence[Suggestion], path: Path, *, force: bool = False) -> None:
    """Draw up to six runs into a file that appears complete or not at all; the arguments and errors are those of `canvas.write_picture`."""
    write_picture(path, lambda figure: _compose(figure, suggestions), force=force)


def _compose(figure: Figure, suggestions: Sequence[Suggestion]) -> None:
    shown = suggestions[:_MOST_RUNS]
    names = wording.short_sources(suggestions)[:_MOST_RUNS]
    sentences = [textwrap.wrap(visible(wording.headline(s)), int((_WIDTH - _LEFT - _RIGHT) * _PLAIN))[:3] for s in shown]
    heights = [_height(s, lines) for s, lines in zip(shown, sentences, strict=True)]
    height = sum(heights) + 0.3
    figure.set_size_inches(_WIDTH, height)
    place = Place(figure, _WIDTH, height)
    top = 0.1
    for s, name, lines, used in zip(shown, names, sentences, heights, strict=True):
        title = f"{wording.answer(s)} · "
        place.text(_LEFT, top + 0.24, title + visible(name, int((_WIDTH - _LEFT) * _BOLD) - len(title)), fontsize=12, fontweight="bold")
        for i, text in enumerate(lines):
            place.text(_LEFT, top + _TITLE + _LINE * i + 0.06, text, color=QUIET)
        if len(s.norms):
            _run(place, s, top + _TITLE + _LINE * len(lines))
        top += used
    if len(shown) < len(suggestions):
        place.text(_LEFT, height - 0.12, f"the first {len(shown)} of {len(suggestions)} runs", color=QUIET)


def _height(s: Suggestion, lines: Sequence[str]) -> float:
    row = _HEAD + _PANEL + _AXIS
    return _TITLE + _LINE * len(lines) + (row * (1 + bool(s.adaptive)) + 0.15 if len(s.norms) else 0.2)


def _run(place: Place, s: Suggestion, top: float) -> None:
    scale = Scale("log", float(s.norms.min()))
    shown = [s.norms.min(), s.norms.max(), *(c.max_norm for c in s.candidates if c.label in ("recommended", "own"))]
    shown += [v for v in (s.low, s.high) if v is not None]
    heights = scale.height(np.array(shown))
    if len(s.exploding):
        heights = np.append(heights, min(float(scale.height(s.exploding).max()), float(heights.max()) + _MOST_DECADES))
    margin = max(0.03 * float(heights.max() - heights.min()), 0.05)
    limits = float(heights.min()) - margin, float(heights.max()) + margin
    _title(place, _LEFT, top, "healthy norms", f"{len(s.norms):,}, log axis")
    _distribution(_axes(place, _LEFT, top + _HEAD, _CELL, scale, limits), s, scale)
    left = _LEFT + _CELL + _BETWEEN
    _title(place, left, top, "share clipped at a threshold", "both axes log")
    _clipped(_axes(place, left, top + _HEAD, _CELL, scale, limits), s, scale)
    if s.adaptive:
        top += _HEAD + _PANEL + _AXIS
        _title(place, _LEFT, top, "adaptive rules on the same norms", "log axis")
        _adaptive(place.axes(_LEFT, top + _HEAD - 0.3, _WIDTH - _LEFT - _RIGHT, _PANEL + 0.3), s)


def _title(place: Place, left: float, top: float, title: str, remark: str) -> None:
    place.text(left, top + 0.18, title, fontsize=10, fontweight="bold")
    place.text(left + 0.085 * len(title) + 0.15, top + 0.18, remark, color=QUIET)


def _axes(place: Place, left: float, top: float, width: float, scale: Scale, limits: tuple[float, float]) -> Axes:
    axes = place.axes(left, top, width, _PANEL)
    _plain(axes)
    axes.set_xlim(*limits)
    axes.set_xticks(*value_ticks(scale, *limits))
    axes.set_xlabel("gradient norm", fontsize=8.5)
    return axes


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=3)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _distribution(axes: Axes, s: Suggestion, scale: Scale) -> None:
    x = scale.height(s.norms)
    counts, edges = np.histogram(x, bins=min(_NUM_BINS, max(10, int(np.sqrt(len(x))))))
    axes.bar(edges[:-1], counts / len(x), np.diff(edges), align="edge", color=SERIES, alpha=0.75, linewidth=0)
    axes.set_ylim(0, 1.08 * counts.max() / len(x))
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if len(s.exploding):
        edge = axes.get_xlim()[1]
        at = np.minimum(scale.height(s.exploding), edge)
        along = axes.get_xaxis_transform()
        axes.plot(at, np.full(len(at), 0.03), "|", color=ALARM, markersize=9, markeredgewidth=1.2, transform=along)
        label = f"exploding, up to {number(float(s.exploding.max()))}" if len(s.exploding) > 1 else "exploding"
        axes.text(float(at.max()), 0.09, label, transform=along, color=ALARM, fontsize=8, ha="right")
    _thresholds(axes, s, scale)


def _thresholds(axes: Axes, s: Suggestion, scale: Scale) -> None:
    """The suggestion with its interval and the run's own bound, percentiles a row below; labels where there is room."""
    _interval(axes, s, scale)
    low, high = axes.get_xlim()
    taken: dict[float, list[tuple[float, float]]] = {_UPPER: [], _LOWER: []}
    named = sorted((c for c in s.candidates if c.label in _MARKED or c.percentile is not None), key=_importance)
    for c in named:
        color, width, style, label = _look(c)
        at = float(scale.height(np.array([c.max_norm]))[0])
        axes.axvline(at, color=color, linewidth=width, linestyle=style)
        half = len(label) * _CHARACTER / _CELL / 2
        middle = min(max((at - low) / (high - low), half), 1 - half)
        row = _UPPER if c.label in _MARKED else _LOWER
        if all(middle + half < start or stop < middle - half for start, stop in taken[row]):
            taken[row].append((middle - half - _APART, middle + half + _APART))
            weight = "bold" if c.label == "recommended" else "normal"
            axes.text(middle, row, label, transform=axes.transAxes, color=color, fontsize=8, ha="center", fontweight=weight)


def _importance(c: Candidate) -> tuple[int, float]:
    """The suggestion, the run's own bound, then percentiles from the highest."""
    return {"recommended": 0, "own": 1}.get(c.label, 2), -(c.percentile or 0)


def _look(c: Candidate) -> tuple[str, float, Any, str]:
    if c.label == "recommended":
        return USUAL, 1.8, "-", f"p{c.percentile or 0:g}: {number(c.max_norm)}"
    if c.label == "own":
        return TEXT, 1.3, (0, (5, 3)), f"own {number(c.max_norm)}"
    return QUIET, 0.8, (0, (1, 2)), c.label


def _interval(axes: Axes, s: Suggestion, scale: Scale) -> None:
    if s.low is not None and s.high is not None:
        axes.axvspan(*scale.height(np.array([s.low, s.high])), color=USUAL, alpha=0.13, linewidth=0)


def _clipped(axes: Axes, s: Suggestion, scale: Scale) -> None:
    ordered = np.sort(s.norms)
    at = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), _MOST_POINTS)).astype(np.intp))
    tail = np.arange(max(0, len(ordered) - 200), len(ordered))
    at = np.union1d(at, tail)
    # At the k-th smallest norm itself n - k norms are clipped; below the smallest, all.
    fraction = 1 - (at + 1) / len(ordered)
    floor = 0.5 / len(ordered)
    low, high = axes.get_xlim()
    x = np.r_[low, scale.height(ordered[at]), high]
    y = np.r_[1.0, np.maximum(fraction, floor), floor]
    axes.step(x, np.log10(y), where="post", color=SERIES, linewidth=1.3)
    top_decades = range(0, -int(np.floor(np.log10(floor))) + 1)
    axes.set_yticks([-d for d in top_decades], [share(10.0**-d) for d in top_decades])
    axes.set_ylim(float(np.log10(floor)), 0.12)
    for c in s.candidates:
        place = float(scale.height(np.array([c.max_norm]))[0])
        if not low <= place <= high:
            continue
        height = float(np.log10(max(c.clipped_fraction, floor)))
        is_chosen = c.label == "recommended"
        color = USUAL if is_chosen else TEXT if c.label == "own" else QUIET
        axes.plot([place], [height], "o", color=color, markersize=6 if is_chosen else 4, zorder=4, clip_on=False)
        if is_chosen:
            text = f"{number(c.max_norm)} clips {share(c.clipped_fraction)}"
            right = place > low + 0.6 * (high - low)
            axes.annotate(
                text,
                (place, height),
                (-8 if right else 8, 6),
                textcoords="offset points",
                color=USUAL,
                fontsize=8.5,
                fontweight="bold",
                ha="right" if right else "left",
            )
    _interval(axes, s, scale)


def _adaptive(axes: Axes, s: Suggestion) -> None:
    _plain(axes)
    first, last = int(s.adaptive[0].steps[0]), int(s.adaptive[0].steps[-1])
    span = max(float(last - first), 1.0)
    bounds = [a.bound[np.isfinite(a.bound)] for a in s.adaptive]
    drawn = np.concatenate([s.norms, *bounds])
    drawn = drawn[drawn > 0]
    scale = Scale("log", float(drawn.min()))
    heights = scale.height(np.r_[drawn.min(), drawn.max()])
    _polyline(axes, scale, since(s.steps, first), s.norms, color=SERIES, linewidth=0.7, label="healthy norms")
    for a, color in zip(s.adaptive, (_AUTOCLIP, _ZCLIP), strict=True):
        name = {"autoclip": "AutoClip", "zclip": "ZClip"}[a.rule]
        _polyline(axes, scale, since(a.steps, first), a.bound, color=color, linewidth=1.4, label=name)
    if s.max_norm is not None:
        axes.axhline(float(scale.height(np.array([s.max_norm]))[0]), color=USUAL, linewidth=1.5, label=f"fixed {number(s.max_norm)}")
    axes.set_xlim(-0.01 * span, 1.01 * span)
    margin = max(0.05 * float(heights[1] - heights[0]), 0.05)
    limits = float(heights[0]) - margin, float(heights[1]) + margin
    axes.set_ylim(*limits)
    axes.set_yticks(*value_ticks(scale, *limits))
    axes.set_xticks(*step_ticks(first, last, 8))
    axes.set_xlabel("step" if s.steps_known else "row (the log has no steps)", fontsize=8.5)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, frameon=False, fontsize=8.5, labelcolor=QUIET)


def _polyline(axes: Axes, scale: Scale, x: Floats, values: Floats, **style: Any) -> None:
    px, py = line(x, values, _NUM_COLUMNS)
    axes.plot(px, scale.height(py), **style)
