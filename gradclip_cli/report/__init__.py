"""Reports: analyses in, text out. They show what was judged and judge nothing themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gradclip_cli.model.finding import Analysis
from gradclip_cli.report.canvas import check_plot_target
from gradclip_cli.report.json import render_json
from gradclip_cli.report.markdown import render_markdown
from gradclip_cli.report.plot import plot
from gradclip_cli.report.text import render_text

__all__ = ["FORMATS", "Render", "check_plot_target", "plot", "render_json", "render_markdown", "render_text"]


class Render(Protocol):
    """Analyses in, the finished text out, coloured for a terminal where the format can be."""

    def __call__(self, analyses: Sequence[Analysis], *, color: bool) -> str: ...


FORMATS: Mapping[str, Render] = {
    "text": render_text,
    "json": lambda analyses, *, color: render_json(analyses),
    "markdown": lambda analyses, *, color: render_markdown(analyses),
}
"""What `gradclip analyze --format` takes. A new format is a file here and a row in this table."""
