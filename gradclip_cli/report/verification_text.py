"""The report of `gradclip verify` for a terminal or a job's log."""

from __future__ import annotations

import io
import shutil
import sys

from gradclip_cli.model.check import Verification
from gradclip_cli.report import verification_wording as wording
from gradclip_cli.report.escape import ascii_only, visible

_STYLE = {"FAIL": "bold red", "CANNOT JUDGE": "bold", "PASS": "bold green", "pass": "green", "warn": "yellow", "skip": "dim"}
_WIDEST = 120
_NARROWEST = 40
_CHECK_WIDTH = 24


def render_verification_text(verification: Verification, *, width: int | None = None, color: bool = False) -> str:
    """What was judged, the checks with their evidence, the gravest first, and the answer last, where a log ends.

    Args:
        width: Characters a line; the terminal's unless given (COLUMNS overrides).
        color: Whether to use colours; nothing is said by colour alone.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if width is None:
        width = shutil.get_terminal_size().columns
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=max(min(width, _WIDEST), _NARROWEST),
        force_terminal=color,
        force_jupyter=False,
        no_color=not color,
        color_system="standard" if color else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    title = wording.title(verification)
    console.print(Text.assemble((title, _STYLE[title]), "  ", (visible(verification.source), "bold")))
    console.print(Text(visible(wording.target(verification))))
    console.print()
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=min(_CHECK_WIDTH, console.width // 3))
    table.add_column(overflow="fold")
    for row in wording.table(verification):
        table.add_row(Text(row.word, style=_STYLE.get(row.word, "")), Text(visible(row.check)), Text(visible(row.detail)))
    console.print(table)
    for note in verification.notes:
        console.print(Text(f"\nnote: {visible(note)}"))
    console.print()
    for finding in wording.rules(verification):
        console.print(Text(f"{finding.rule} {finding.name}: see `gradclip explain {finding.rule}`"))
    console.print(Text(wording.verdict_line(verification), style=_STYLE[title]))
    text = "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())
    return text if (sys.stdout.encoding or "ascii").lower().startswith("utf") else ascii_only(text)
