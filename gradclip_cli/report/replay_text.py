"""The report of `gradclip replay` for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradclip_cli.model.finding import Severity
from gradclip_cli.model.replay import Replay
from gradclip_cli.report import replay_wording
from gradclip_cli.report.escape import visible
from gradclip_cli.report.page import Page, grid, heading
from gradclip_cli.report.wording import more

if TYPE_CHECKING:
    from rich.console import Console

_STYLE = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: ""}
_LONGEST_NAME = 60


def render_replay_text(replay: Replay, *, width: int | None = None, color: bool = False, unicode: bool | None = None) -> str:
    """What was read, the norms, what else was asked for, the findings; see `Page` for the arguments."""
    from rich.text import Text

    page = Page(width=width, color=color, unicode=unicode)
    console = page.console
    console.print(Text.assemble(("REPLAY", "bold"), "  ", (visible(replay.source), "bold")))
    console.print(Text(visible(replay_wording.headline(replay))))
    for rows in replay_wording.tables(replay):
        _table(console, rows)
    _findings(console, replay)
    if replay.notes:
        heading(console, "Notes")
        table = grid(False, True)
        for note in replay.notes:
            table.add_row("-", Text(visible(note), style="dim"))
        console.print(table)
    return page.text


def _table(console: Console, rows: replay_wording.Rows) -> None:
    from rich.text import Text

    heading(console, visible(rows.title))
    table = grid(*([False] * (len(rows.header) - 1)), True)
    if any(rows.header):
        table.add_row(*(Text(name, style="dim") for name in rows.header))
    for cells in rows.cells:
        table.add_row(*(Text(visible(cell, _LONGEST_NAME)) for cell in cells))
    console.print(table)
    if rows.remark:
        console.print(Text(visible(rows.remark), style="dim"))


def _findings(console: Console, replay: Replay) -> None:
    from rich.text import Text

    if not replay.findings:
        return
    heading(console, "Findings")
    table = grid(False, True)
    shown, left_out = replay_wording.findings(replay)
    for f in shown:
        rule = Text.assemble((f"{f.rule} {f.severity.value}", _STYLE[f.severity]), "\n", (f.name, "dim"))
        where = "" if f.first_step is None else f"step {f.first_step:,}: " if f.first_step == f.last_step else ""
        table.add_row(rule, Text(visible(where + f.message)))
    console.print(table)
    if left_out:
        console.print(Text(more(left_out), style="dim"))
