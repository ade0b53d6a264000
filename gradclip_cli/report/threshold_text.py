"""The report of `gradclip suggest-threshold` for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradclip_cli.model.threshold import Suggestion
from gradclip_cli.report import threshold_wording as wording
from gradclip_cli.report.escape import visible
from gradclip_cli.report.page import Page, grid, heading
from gradclip_cli.wording import share

if TYPE_CHECKING:
    from rich.console import Console

_LONGEST_NAME = 40


def render_threshold_text(
    suggestions: Sequence[Suggestion], *, width: int | None = None, color: bool = False, unicode: bool | None = None
) -> str:
    """The number first, then what other numbers would do, why, and what to know before using it; see `Page` for the arguments."""
    page = Page(width=width, color=color, unicode=unicode)
    console = page.console
    if len(suggestions) > 1:
        _side_by_side(console, suggestions)
    for s in suggestions:
        if len(suggestions) > 1:
            console.print()
            console.print("─" * console.width, style="dim")
        _suggestion(console, s)
    return page.text


def _side_by_side(console: Console, suggestions: Sequence[Suggestion]) -> None:
    from rich.text import Text

    table = grid(False, False, True)
    for s, source in zip(suggestions, wording.short_sources(suggestions), strict=True):
        clips = "" if s.clipped_fraction is None else f"clips {share(s.clipped_fraction)}"
        table.add_row(Text(wording.answer(s), style="bold"), Text(clips, style="dim"), Text(visible(source, 2 * console.width)))
    console.print(table)


def _suggestion(console: Console, s: Suggestion) -> None:
    from rich.text import Text

    style = "bold" if s.max_norm is None else "bold green"
    console.print(Text.assemble((wording.answer(s), style), "  ", (visible(s.source), "bold")))
    console.print(Text(visible(wording.headline(s))))
    console.print()
    table = grid(False, True)
    for name, detail in wording.facts(s):
        table.add_row(Text(name, style="bold"), Text(visible(detail), style="dim"))
    console.print(table)
    if s.candidates:
        _table(console, "Candidates", wording.CANDIDATE_HEADER, wording.candidate_rows(s))
    if wording.shows_phases(s):
        _table(console, "Parts", wording.phase_header(s), wording.phase_rows(s))
    for title, lines in (("Why this number", s.reasons), (wording.notes_title(s), wording.notes(s))):
        if lines:
            heading(console, title)
            table = grid(False, True)
            for line in lines:
                table.add_row("-", Text(visible(line)))
            console.print(table)
    if commands := wording.next_commands(s):
        heading(console, "Next")
        for command in commands:
            console.print(Text(command), soft_wrap=True)


def _table(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.text import Text

    heading(console, title)
    table = grid(*([False] * len(header)))
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row(*(Text(name, style="dim") for name in header))
    for cells in rows:
        style = "bold" if cells[0].startswith(">") else ""
        table.add_row(*(Text(visible(cell, _LONGEST_NAME), style=style) for cell in cells))
    console.print(table)
