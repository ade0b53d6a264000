"""What every picture shares: where it may be written, how it looks, and that it appears complete or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradclip_cli.errors import GradclipError, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 144
_SUFFIXES = (".png", ".svg")
# Okabe and Ito's palette, told apart by colour-blind readers too; nothing is said by colour alone.
SERIES, USUAL, ALARM, ALARM_TEXT, TEXT, QUIET, GRID = "#5f6b77", "#0072b2", "#d55e00", "#a84a00", "#1f2429", "#6b747d", "#e4e7ea"
_STYLE: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": TEXT,
    "text.parse_math": False,
    "axes.edgecolor": "#b4bbc2",
    "axes.linewidth": 0.8,
    "axes.labelcolor": QUIET,
    "xtick.color": "#b4bbc2",
    "ytick.color": "#b4bbc2",
    "xtick.labelcolor": QUIET,
    "ytick.labelcolor": QUIET,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.solid_joinstyle": "bevel",
    "svg.fonttype": "none",
    "svg.hashsalt": "gradclip",
}


def check_plot_target(path: Path, *, force: bool = False) -> None:
    """Whether a picture may be written there, asked before the work is done.

    Raises:
        UsageError: Another suffix than .png or .svg, a directory that is missing, or a file that is there
            already without `force`.
    """
    if path.suffix.lower() not in _SUFFIXES:
        found = f"the suffix {path.suffix}" if path.suffix else "no suffix"
        raise UsageError(f"{path}: found {found}; expected .png or .svg", hint="--plot run.png")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no directory {path.parent}; expected one to write into", hint="make it first, or name another")
    if path.is_dir():
        raise UsageError(f"{path}: found a directory; expected a file to write")
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path}: is there already; nothing was overwritten", hint="--force overwrites it")


def write_picture(path: Path, compose: Callable[[Figure], None], *, force: bool = False) -> None:
    """Draw a figure into a file that appears complete or not at all.

    Args:
        compose: Fills the figure, its size included.

    Raises:
        UsageError: As `check_plot_target`.
        GradclipError: The file cannot be written.
    """
    check_plot_target(path, force=force)
    picture = _render(compose, path.suffix.lower().removeprefix("."))
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(picture)
        part.replace(path)
    except OSError as e:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise GradclipError(f"{path}: cannot be written ({e.strerror or e}); expected a place to write to", hint="name another file") from e


def _render(compose: Callable[[Figure], None], kind: str) -> bytes:
    """The file's bytes. The user's matplotlibrc has no say, and global settings are as before afterwards."""
    import logging

    # What it says of a home directory it cannot write to is no news about the run.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with mpl.rc_context(), warnings.catch_warnings():
        # A name may use letters the font has not; its box is good enough, and no concern of standard error.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        figure = Figure(dpi=DPI, facecolor="white")
        compose(figure)
        if kind == "png":
            FigureCanvasAgg(figure).print_figure(
                buffer, format="png", dpi=DPI, metadata={"Software": None}, pil_kwargs={"compress_level": 3}
            )
        else:
            FigureCanvasSVG(figure).print_figure(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


class Place:
    """A figure measured in inches from its upper left corner."""

    def __init__(self, figure: Figure, width: float, height: float) -> None:
        self.figure, self.width, self.height = figure, width, height

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        return self.figure.add_axes((left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height))

    def text(self, left: float, top: float, text: str, **style: Any) -> None:
        self.figure.text(left / self.width, 1 - top / self.height, text, va="baseline", **style)
