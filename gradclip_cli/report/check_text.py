"""The report of `gradclip check` for a terminal or a job's log."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradclip_cli.model.check import Suite, overall
from gradclip_cli.report import check_wording as wording
from gradclip_cli.report.escape import visible
from gradclip_cli.report.page import Page, grid

if TYPE_CHECKING:
    from rich.table import Table

_STYLE = {"FAIL": "bold red", "MISSING": "bold", "CANNOT JUDGE": "bold", "PASS": "bold green", "warn": "yellow", "pass": "green"}
_VALUE_WIDTH = 16


def render_check_text(suites: Sequence[Suite], *, width: int | None = None, color: bool = False) -> str:
    """The checks of each target, a line a target where there are several, and the answer last, where a log ends; see `page.Page`."""
    from rich.text import Text

    page = Page(width=width, color=color)
    console = page.console
    for suite in suites:
        head = wording.TITLE[suite.judgement]
        console.print(Text.assemble((head, _STYLE[head]), "  ", (visible(suite.name), "bold")))
        console.print(f"{wording.tally(suite)}\n")
        if rows := wording.rows(suite):
            console.print(_table([(r.word, r.check, r.detail) for r in rows], console.width // 3))
        console.print()
        if notes := wording.notes(suite):
            console.print(_notes(notes))
            console.print()
    if len(suites) > 1:
        console.print(_table([(wording.TITLE[s.judgement], s.name, wording.tally(s)) for s in suites], console.width // 2))
        console.print()
    rules = sorted({c.id for s in suites for c in s.checks if c.counts and re.fullmatch(r"GC\d+", c.id)})
    if rules:
        console.print(f"`gradclip explain {rules[0]}` tells what it means and what to do.")
    console.print(Text(wording.verdict_line(suites), style=_STYLE[wording.TITLE[overall(suites)]]))
    return page.text


def _table(rows: Sequence[tuple[str, str, str]], second: int) -> Table:
    """Rows of a word, a name of at most so many characters a line, and what there is to say."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=second)
    table.add_column(overflow="fold")
    for word, name, detail in rows:
        table.add_row(Text(word, style=_STYLE.get(word, "")), Text(visible(name)), Text(visible(detail)))
    return table


def _notes(notes: Sequence[str]) -> Table:
    from rich.text import Text

    table = grid(False, True)
    for note in notes:
        table.add_row("note:", Text(visible(note)))
    return table


def render_policy_text(settings: Sequence[wording.InForce], rules: Sequence[tuple[str, str]]) -> str:
    """The settings in force with where each came from, and from which severity on each rule counts."""
    rows = [("setting", "value", "from"), *((s.key, visible(wording.shown(s.value)), visible(s.origin)) for s in settings)]
    key_width = max(len(key) for key, _, _ in rows)
    lines = []
    for key, value, origin in rows:
        if len(value) <= _VALUE_WIDTH:
            lines.append(f"{key:<{key_width}}  {value:<{_VALUE_WIDTH}}  {origin}")
        else:
            lines += [f"{key:<{key_width}}  {'below':<{_VALUE_WIDTH}}  {origin}", *_wrapped(value)]
    by_bar: dict[str, list[str]] = {}
    for rule, bar in rules:
        by_bar.setdefault(bar, []).append(rule)
    for bar, names in sorted(by_bar.items(), key=lambda item: item[0] == ""):
        lines += [
            "",
            f"Count from {bar} on:" if bar else "Do not count:",
            *textwrap.wrap(", ".join(names), 78, initial_indent="  ", subsequent_indent="  "),
        ]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 78, initial_indent="    ", subsequent_indent="    ")
