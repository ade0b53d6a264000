"""The report of `gradclip suggest-threshold` for a pull request or an issue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradclip_cli.model.threshold import Suggestion
from gradclip_cli.report import threshold_wording as wording
from gradclip_cli.report.escape import markdown, markdown_code
from gradclip_cli.report.markdown import table
from gradclip_cli.wording import share


def render_threshold_markdown(suggestions: Sequence[Suggestion]) -> str:
    """GitHub's Markdown; every name and note is escaped."""
    blocks: list[str] = []
    if len(suggestions) > 1:
        rows = (
            [f"**{wording.answer(s)}**", markdown_code(source), "" if s.clipped_fraction is None else share(s.clipped_fraction)]
            for s, source in zip(suggestions, wording.short_sources(suggestions), strict=True)
        )
        blocks.append(table(("suggestion", "run", "clips"), rows))
    for s in suggestions:
        blocks += _suggestion(s)
    return "\n\n".join(blocks) + "\n"


def _suggestion(s: Suggestion) -> list[str]:
    blocks = [f"### {wording.answer(s)}: {markdown_code(s.source)}", markdown(wording.headline(s))]
    blocks.append(table(("", ""), ([name, markdown(detail)] for name, detail in wording.facts(s))))
    if s.candidates:
        rows = (
            [f"**{markdown(c)}**" if cells[0].startswith(">") and c else markdown(c) for c in cells] for cells in wording.candidate_rows(s)
        )
        blocks += ["#### Candidates", table(wording.CANDIDATE_HEADER, rows)]
    if wording.shows_phases(s):
        cells = ([markdown(c) for c in row] for row in wording.phase_rows(s))
        blocks += ["#### Parts", table(wording.phase_header(s), cells)]
    for title, lines in (("Why this number", s.reasons), (wording.notes_title(s), wording.notes(s))):
        blocks += [f"#### {title}", _list(markdown(line) for line in lines)] if lines else []
    return blocks


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
