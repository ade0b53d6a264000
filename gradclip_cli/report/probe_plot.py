"""Twins as a picture: loss, gradient norm and movement of the parameters over one another."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradclip_cli.model.probe import Probe, Twin
from gradclip_cli.model.run import Steps, Values
from gradclip_cli.report import probe_wording as wording
from gradclip_cli.report.canvas import ALARM, GRID, QUIET, SERIES, USUAL, Place, write_picture
from gradclip_cli.report.decimate import line, since
from gradclip_cli.report.escape import visible
from gradclip_cli.report.ticks import step_ticks
from gradclip_cli.wording import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
_WIDTH, _LEFT, _RIGHT = 10.0, 0.72, 0.35
_PANEL, _HEAD, _GAP, _TOP, _FOOT = 1.9, 0.3, 0.4, 0.8, 0.2
_LINE, _LETTERS = 0.19, 14.5
_NUM_COLUMNS = 1440
_LINEAR_RATIO, _MANY_TICKS_RATIO = 5.0, 1e3
_NUM_TICKS = 10
# Okabe and Ito's palette; each twin has a dash of its own too.
_COLORS = (SERIES, USUAL, "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
_DASHES = ("-", (0, (6, 1.5)), (0, (2.5, 1)), "-.", ":", (0, (8, 2, 1, 2, 1, 2)))
_Panel = tuple[str, Callable[[Twin], tuple[Steps, Values] | None]]


def plot_probe(probe: Probe, path: Path, *, force: bool = False) -> None:
    """Draw it into a file that appears complete or not at all; the arguments and errors are those of `canvas.write_picture`."""
    write_picture(path, lambda figure: _compose(figure, probe), force=force)


def _series(name: str) -> Callable[[Twin], tuple[Steps, Values] | None]:
    def of(twin: Twin) -> tuple[Steps, Values] | None:
        series = twin.analysis.run.series.get(name)
        return None if series is None else (series.steps, series.values)

    return of


_PANELS: tuple[_Panel, ...] = (
    ("loss", _series("loss")),
    ("gradient norm, before clipping", _series("grad_norm")),
    ("movement of the parameters in an update", lambda twin: (twin.steps, twin.moved)),
)


def _compose(figure: Figure, probe: Probe) -> None:
    sentence = textwrap.wrap(visible(wording.headline(probe)), int((_WIDTH - _LEFT - _RIGHT) * _LETTERS))[:2]
    top = _TOP + _LINE * (len(sentence) - 1)
    height = top + len(_PANELS) * (_HEAD + _PANEL + _GAP) + _FOOT
    figure.set_size_inches(_WIDTH, height)
    place = Place(figure, _WIDTH, height)
    place.text(_LEFT, 0.34, f"Probe {visible(probe.source, 70)}", fontsize=12, fontweight="bold")
    for i, text in enumerate(sentence):
        place.text(_LEFT, 0.58 + _LINE * i, text, color=QUIET)
    for number_, (title, of) in enumerate(_PANELS):
        top += _HEAD
        place.text(_LEFT, top - 0.1, title, fontsize=10, fontweight="bold")
        axes = place.axes(_LEFT, top, _WIDTH - _LEFT - _RIGHT, _PANEL)
        _draw(axes, probe, of, legend=number_ == 0)
        top += _PANEL + _GAP


def _draw(axes: Axes, probe: Probe, of: Callable[[Twin], tuple[Steps, Values] | None], *, legend: bool) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=3)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    last = max(int(t.steps[-1]) for t in probe.twins if len(t.steps))
    drawn = [np.empty(0)]
    for i, twin in enumerate(probe.twins):
        if (found := of(twin)) is None or not len(found[0]):
            continue
        x, y = line(since(found[0], 1), found[1], _NUM_COLUMNS)
        color, dash = _COLORS[i % len(_COLORS)], _DASHES[i % len(_DASHES)]
        axes.plot(x, y, color=color, linewidth=1.2, linestyle=dash, label=f"max_norm {wording.name(twin)}")
        drawn.append(found[1])
    for planted in probe.planted:
        axes.axvline(planted.step - 1, color=ALARM, linewidth=1, linestyle=(0, (2, 2)), zorder=0)
        if legend:
            axes.text(
                planted.step - 1,
                0.98,
                f" {planted}",
                transform=axes.get_xaxis_transform(),
                color=ALARM,
                fontsize=8.5,
                va="top",
                ha="right" if planted.step > 0.8 * last else "left",
            )
    _log(axes, np.concatenate(drawn))
    margin = max(0.02 * (last - 1), 0.5)
    axes.set_xlim(-margin, last - 1 + margin)
    axes.set_xticks(*step_ticks(1, last, _NUM_TICKS))
    if legend:
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            handles, labels, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(handles), frameon=False, fontsize=8.5, labelcolor=QUIET
        )


def _log(axes: Axes, values: Values) -> None:
    """A scale in powers where the values need it, with plain numbers at its ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive) and positive.max() > _LINEAR_RATIO * positive.min():
        axes.set_yscale("log")
        wide = positive.max() > _MANY_TICKS_RATIO * positive.min()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
