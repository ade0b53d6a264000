"""The formats of `gradclip probe`: the result in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gradclip_cli.model.probe import Probe
from gradclip_cli.report.probe_json import render_probe_json
from gradclip_cli.report.probe_markdown import render_probe_markdown
from gradclip_cli.report.probe_text import render_probe_text


class Render(Protocol):
    """A probe in, the finished text out, coloured for a terminal where the format can be."""

    def __call__(self, probe: Probe, *, color: bool) -> str: ...


FORMATS: Mapping[str, Render] = {
    "text": render_probe_text,
    "json": lambda probe, *, color: render_probe_json(probe),
    "markdown": lambda probe, *, color: render_probe_markdown(probe),
}
"""What `gradclip probe --format` takes."""
