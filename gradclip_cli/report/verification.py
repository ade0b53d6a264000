"""The reports of `gradclip verify`: one table; a verification in, text, JSON, Markdown, JUnit XML or annotations out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gradclip_cli.model.check import Verification
from gradclip_cli.report.github import render_github
from gradclip_cli.report.junit import render_junit
from gradclip_cli.report.verification_json import render_verification_json
from gradclip_cli.report.verification_markdown import render_verification_markdown
from gradclip_cli.report.verification_text import render_verification_text

__all__ = ["VERIFICATION_FORMATS", "RenderVerification"]


class RenderVerification(Protocol):
    """A verification in, the finished text out, coloured for a terminal where the format can be."""

    def __call__(self, verification: Verification, *, color: bool) -> str: ...


VERIFICATION_FORMATS: Mapping[str, RenderVerification] = {
    "text": lambda v, *, color: render_verification_text(v, color=color),
    "json": lambda v, *, color: render_verification_json(v),
    "markdown": lambda v, *, color: render_verification_markdown(v),
    "junit": lambda v, *, color: render_junit([v.suite]),
    "github": lambda v, *, color: render_github([v.suite]),
}
"""What `gradclip verify --format` takes."""
