"""The reports of `gradclip check`: one table in, text, JSON, Markdown, JUnit XML or annotations out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gradclip_cli.errors import UsageError
from gradclip_cli.model.check import Suite
from gradclip_cli.report.check_json import render_check_json, render_policy_json
from gradclip_cli.report.check_markdown import render_check_markdown
from gradclip_cli.report.check_text import render_check_text, render_policy_text
from gradclip_cli.report.check_wording import EXIT_STATUS, InForce
from gradclip_cli.report.github import render_github
from gradclip_cli.report.junit import render_junit

__all__ = ["CHECK_FORMATS", "EXIT_STATUS", "InForce", "RenderCheck", "check_report_target", "render_policy", "report_format"]


class RenderCheck(Protocol):
    """Suites and the settings in force in, the finished text out, coloured for a terminal where the format can be."""

    def __call__(self, suites: Sequence[Suite], settings: Sequence[InForce], *, color: bool) -> str: ...


CHECK_FORMATS: Mapping[str, RenderCheck] = {
    "text": lambda suites, settings, *, color: render_check_text(suites, color=color),
    "json": lambda suites, settings, *, color: render_check_json(suites, settings),
    "markdown": lambda suites, settings, *, color: render_check_markdown(suites, settings),
    "junit": lambda suites, settings, *, color: render_junit(suites),
    "github": lambda suites, settings, *, color: render_github(suites),
}
"""What `gradclip check --format` takes."""

_SUFFIXES = {".xml": "junit", ".json": "json", ".md": "markdown", ".txt": "text"}


def report_format(path: Path) -> str:
    """The format that the suffix of a file asks for."""
    return _SUFFIXES[path.suffix.lower()]


def check_report_target(path: Path, *, force: bool = False) -> None:
    """Whether a report may be written there, asked before the work is done.

    Raises:
        UsageError: Another suffix, a directory that is missing, or a file that is there already without `force`.
    """
    if path.suffix.lower() not in _SUFFIXES:
        found = f"the suffix {path.suffix}" if path.suffix else "no suffix"
        raise UsageError(f"{path}: found {found}; expected one of {', '.join(_SUFFIXES)}", hint="--report gradclip.xml")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no directory {path.parent}; expected one to write into", hint="make it first, or name another")
    if path.is_dir():
        raise UsageError(f"{path}: found a directory; expected a file to write")
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path}: is there already; nothing was overwritten", hint="--force overwrites it")


def render_policy(settings: Sequence[InForce], rules: Sequence[tuple[str, str]], *, as_json: bool) -> str:
    """The settings in force, and from which severity on each rule counts ("" where it does not)."""
    return render_policy_json(settings, rules) if as_json else render_policy_text(settings, rules)
