"""A replay as a picture: norms before and after, who makes them up, what an optimizer did, magnitudes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradclip_cli.model.replay import Replay, ReplayStep
from gradclip_cli.report import replay_wording
from gradclip_cli.report.canvas import ALARM, GRID, QUIET, SERIES, TEXT, USUAL, Place, write_picture
from gradclip_cli.report.decimate import Floats, line, since
from gradclip_cli.report.escape import visible
from gradclip_cli.report.ticks import power_label, step_ticks
from gradclip_cli.wording import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
_WIDTH, _LEFT, _RIGHT = 10.0, 0.72, 0.35
_PANEL, _HEAD, _GAP, _TOP, _FOOT = 1.9, 0.3, 0.42, 0.75, 0.15
_LINE, _PLAIN = 0.19, 14.5
_NUM_COLUMNS = 1440
_MOST_DOTS = 60
_LINEAR_RATIO, _MANY_TICKS_RATIO = 5.0, 1e3
_MOST_NAMES = 4
_LONGEST_NAME = 18
_NUM_TICKS = 10
# Of the axis.
_THINNEST_BAR = 0.003
# Okabe and Ito's palette without the colours that mean something here.
_NAMED = ("#009e73", "#56b4e9", "#cc79a7", "#e69f00")
_Panel = tuple[str, Callable[["Axes"], None]]


def plot_replay(replay: Replay, path: Path, *, force: bool = False) -> None:
    """Draw it into a file that appears complete or not at all; the arguments and errors are those of `canvas.write_picture`."""
    write_picture(path, lambda figure: _compose(figure, replay), force=force)


def _compose(figure: Figure, replay: Replay) -> None:
    panels = _panels(replay)
    sentence = textwrap.wrap(visible(replay_wording.headline(replay)), int((_WIDTH - _LEFT - _RIGHT) * _PLAIN))[:3]
    top = _TOP + _LINE * (len(sentence) - 1)
    height = top + len(panels) * (_HEAD + _PANEL + _GAP) + _FOOT
    figure.set_size_inches(_WIDTH, height)
    place = Place(figure, _WIDTH, height)
    place.text(_LEFT, 0.34, f"Replay of {visible(replay.source, 70)}", fontsize=12, fontweight="bold")
    for i, text in enumerate(sentence):
        place.text(_LEFT, 0.58 + _LINE * i, text, color=QUIET)
    for title, draw in panels:
        top += _HEAD
        place.text(_LEFT, top - 0.1, title, fontsize=10, fontweight="bold")
        axes = place.axes(_LEFT, top, _WIDTH - _LEFT - _RIGHT, _PANEL)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=3)
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        draw(axes)
        top += _PANEL + _GAP


def _panels(replay: Replay) -> list[_Panel]:
    panels: list[_Panel] = [
        ("gradient norm", lambda axes: _norms(axes, replay)),
        ("share of the squared norm", lambda axes: _shares(axes, replay)),
    ]
    if replay.optimizer is not None and replay.max_norms:
        name = replay.optimizer.name
        panels.append((f"update norm under {name}", lambda axes: _updates(axes, replay)))
    if any(s.histogram is not None for s in replay.steps):
        panels.append(("magnitudes of the elements, all steps", lambda axes: _histogram(axes, replay)))
    return panels


def _steps(replay: Replay) -> Floats:
    """Places on the axis, counted from the first step."""
    steps = np.array([s.step for s in replay.steps], np.int64)
    return since(steps, int(steps[0]))


def _step_axis(axes: Axes, replay: Replay) -> None:
    first, last = replay.steps[0].step, replay.steps[-1].step
    margin = max(0.02 * (last - first), 0.5)
    axes.set_xlim(-margin, last - first + margin)
    axes.set_xticks(*step_ticks(first, last, _NUM_TICKS))
    axes.set_xlabel("step", fontsize=8.5)


def _line(axes: Axes, x: Floats, values: Floats, **style: Any) -> None:
    px, py = line(x, values, _NUM_COLUMNS)
    axes.plot(px, py, marker="o" if len(px) <= _MOST_DOTS else "", markersize=3, **style)


def _norms(axes: Axes, replay: Replay) -> None:
    x = _steps(replay)
    before = np.array([s.total_norm for s in replay.steps])
    _line(axes, x, before, color=SERIES, linewidth=1, label="before clipping")
    if replay.max_norms:
        after = np.array([s.clips[0].clipped_norm for s in replay.steps])
        _line(axes, x, after, color=USUAL, linewidth=1.2, label=f"clipped at {number(replay.max_norms[0], 4)}")
    for bound in replay.max_norms:
        axes.axhline(bound, color=TEXT, linewidth=1, linestyle=(0, (5, 3)))
    _log(axes, before)
    bad = ~np.isfinite(before)
    if bad.any():
        axes.plot(
            x[bad],
            np.full(np.count_nonzero(bad), 0.96),
            "x",
            color=ALARM,
            markersize=6,
            markeredgewidth=1.3,
            transform=axes.get_xaxis_transform(),
            label="not a finite number",
        )
    _step_axis(axes, replay)
    _legend(axes)


def _log(axes: Axes, values: Floats) -> None:
    """A scale in powers where the values need it, with plain numbers at its ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive) and positive.max() > _LINEAR_RATIO * positive.min():
        axes.set_yscale("log")
        wide = positive.max() > _MANY_TICKS_RATIO * positive.min()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power_label(value)))


def _shares(axes: Axes, replay: Replay) -> None:
    """The tensors with the largest shares stacked; what is left out is the rest."""
    x = _steps(replay)
    names = _leading(replay.steps)
    heights = np.array([[next((t.share for t in s.top_tensors if t.name == name), 0.0) for s in replay.steps] for name in names])
    if len(names):
        width = max(0.8 * float(np.diff(x).min()), _THINNEST_BAR * float(x[-1])) if len(x) > 1 else 0.8
        bottom = np.zeros(len(x))
        for name, color, height in zip(names, _NAMED, heights, strict=False):
            axes.bar(x, height, width, bottom=bottom, color=color, label=visible(name, _LONGEST_NAME), linewidth=0)
            bottom += height
    axes.set_ylim(0, 1.02)
    _step_axis(axes, replay)
    _legend(axes)


def _leading(steps: Sequence[ReplayStep]) -> list[str]:
    largest: dict[str, float] = {}
    for step in steps:
        for tensor in step.top_tensors[:_MOST_NAMES]:
            largest[tensor.name] = max(largest.get(tensor.name, 0.0), tensor.share)
    return sorted(largest, key=lambda name: -largest[name])[:_MOST_NAMES]


def _updates(axes: Axes, replay: Replay) -> None:
    x = _steps(replay)
    unclipped = np.array([math.nan if s.update_norm is None else s.update_norm for s in replay.steps])
    clipped = np.array([math.nan if s.clips[0].update_norm is None else s.clips[0].update_norm for s in replay.steps])
    _line(axes, x, unclipped, color=SERIES, linewidth=1, label="without clipping")
    _line(axes, x, clipped, color=USUAL, linewidth=1.2, label=f"clipped at {number(replay.max_norms[0], 4)}")
    _log(axes, np.concatenate([unclipped, clipped]))
    _step_axis(axes, replay)
    _legend(axes)


def _histogram(axes: Axes, replay: Replay) -> None:
    counts = np.sum([s.histogram for s in replay.steps if s.histogram is not None], axis=0)
    used = np.flatnonzero(counts[1:]) + 1
    total = max(int(counts.sum()), 1)
    if len(used):
        places = np.arange(used[0], used[-1] + 1)
        axes.bar(places - 1023, counts[places] / total, 0.9, color=SERIES)
    if counts[0]:
        axes.text(0.01, 0.9, f"{counts[0] / total:.2%} are zero", transform=axes.transAxes, color=QUIET, fontsize=8.5)
    axes.set_xlabel("power of two", fontsize=8.5)


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles, labels, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(handles), frameon=False, fontsize=8.5, labelcolor=QUIET
        )
