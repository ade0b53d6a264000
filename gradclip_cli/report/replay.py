"""The formats of `gradclip replay`: the result in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gradclip_cli.model.replay import Replay
from gradclip_cli.report.replay_json import render_replay_json
from gradclip_cli.report.replay_markdown import render_replay_markdown
from gradclip_cli.report.replay_text import render_replay_text


class Render(Protocol):
    """A replay in, the finished text out, coloured for a terminal where the format can be."""

    def __call__(self, replay: Replay, *, color: bool) -> str: ...


FORMATS: Mapping[str, Render] = {
    "text": render_replay_text,
    "json": lambda replay, *, color: render_replay_json(replay),
    "markdown": lambda replay, *, color: render_replay_markdown(replay),
}
"""What `gradclip replay --format` takes."""
