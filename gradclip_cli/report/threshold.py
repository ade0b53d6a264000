"""The formats of `gradclip suggest-threshold`: suggestions in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gradclip_cli.model.threshold import Suggestion
from gradclip_cli.report.snippet import pasted
from gradclip_cli.report.threshold_json import render_threshold_json
from gradclip_cli.report.threshold_markdown import render_threshold_markdown
from gradclip_cli.report.threshold_text import render_threshold_text


class Render(Protocol):
    """Suggestions in, the finished text out, coloured for a terminal where the format can be."""

    def __call__(self, suggestions: Sequence[Suggestion], *, color: bool) -> str: ...


def render_value(suggestions: Sequence[Suggestion]) -> str:
    """The number alone, as in the line to paste (JSON has it in full precision); nothing where there is none."""
    return "".join(f"{pasted(s.max_norm)}\n" for s in suggestions if s.max_norm is not None)


FORMATS: Mapping[str, Render] = {
    "text": render_threshold_text,
    "json": lambda suggestions, *, color: render_threshold_json(suggestions),
    "markdown": lambda suggestions, *, color: render_threshold_markdown(suggestions),
    "value": lambda suggestions, *, color: render_value(suggestions),
}
"""What `gradclip suggest-threshold --format` takes."""
