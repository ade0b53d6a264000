"""The report of `gradclip check` for a pull request or a job summary."""

from __future__ import annotations

from collections.abc import Sequence

from gradclip_cli.model.check import Suite
from gradclip_cli.report import check_wording as wording
from gradclip_cli.report.escape import markdown, markdown_code
from gradclip_cli.report.markdown import table


def render_check_markdown(suites: Sequence[Suite], settings: Sequence[wording.InForce]) -> str:
    """GitHub's Markdown, the answer first; every name and message is escaped."""
    blocks = [f"### gradclip check: {wording.verdict_line(suites)}"]
    if len(suites) > 1:
        overview = ([f"**{wording.TITLE[s.judgement]}**", markdown_code(s.name), wording.tally(s)] for s in suites)
        blocks.append(table(("verdict", "what", "checks"), overview))
    for suite in suites:
        blocks.append(f"#### {wording.TITLE[suite.judgement]}: {markdown_code(suite.name)}")
        blocks.append(table(("", "check", "detail"), ([_word(r.word), markdown(r.check), markdown(r.detail)] for r in wording.rows(suite))))
        if notes := wording.notes(suite):
            blocks.append("\n".join(f"- Note: {markdown(note)}" for note in notes))
    chosen = [s for s in settings if s.origin != "default"]
    if chosen:
        blocks += [
            "#### Policy",
            table(("setting", "value", "from"), ([s.key, markdown(wording.shown(s.value)), markdown(s.origin)] for s in chosen)),
        ]
    return "\n\n".join(blocks) + "\n"


def _word(word: str) -> str:
    return f"**{word}**" if word.isupper() else word
