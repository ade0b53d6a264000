"""The report of `gradclip replay` for a pull request or an issue."""

from __future__ import annotations

from gradclip_cli.model.replay import Replay
from gradclip_cli.report import replay_wording
from gradclip_cli.report.escape import markdown, markdown_code
from gradclip_cli.report.markdown import table
from gradclip_cli.report.wording import more
from gradclip_cli.wording import span


def render_replay_markdown(replay: Replay) -> str:
    """GitHub's Markdown; every name and note is escaped."""
    blocks = [f"### Replay of {markdown_code(replay.source)}", markdown(replay_wording.headline(replay))]
    for rows in replay_wording.tables(replay):
        blocks += [f"#### {markdown(rows.title)}", table(rows.header, ([markdown(cell) for cell in cells] for cells in rows.cells))]
        blocks += [markdown(rows.remark)] if rows.remark else []
    shown, left_out = replay_wording.findings(replay)
    if shown:
        found = (
            [f"{f.rule} {f.name}", f.severity.value, "" if f.first_step is None else span(f.first_step, f.last_step), markdown(f.message)]
            for f in shown
        )
        blocks += ["#### Findings", table(("rule", "severity", "steps", "what was found"), found)]
        blocks += [more(left_out)] if left_out else []
    if replay.notes:
        blocks += ["#### Notes", "\n".join(f"- {markdown(note)}" for note in replay.notes)]
    return "\n\n".join(blocks) + "\n"
