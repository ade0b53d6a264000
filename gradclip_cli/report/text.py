"""The report for a terminal: verdict first, a small picture, the findings, what could not be judged, what to do next."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradclip_cli.model import Analysis, Severity, Verdict
from gradclip_cli.report import wording
from gradclip_cli.report.chart import chart
from gradclip_cli.report.escape import ascii_only, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_VERDICT_STYLE = {
    Verdict.STABLE: "bold green",
    Verdict.EXPLODED: "bold yellow",
    Verdict.SPIKED: "bold yellow",
    Verdict.NONFINITE: "bold red",
    Verdict.DIVERGED: "bold red",
    Verdict.CANNOT_JUDGE: "bold",
}
_SEVERITY_STYLE = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: ""}
_WIDEST = 120
_NARROWEST = 40
_LONGEST_REMARK = 30


def render_text(analyses: Sequence[Analysis], *, width: int | None = None, color: bool = False, unicode: bool | None = None) -> str:
    """The report, to be printed as it is.

    Args:
        width: Characters a line; the terminal's unless given (COLUMNS overrides).
        color: Whether to use the terminal's sixteen colours; nothing is said by colour alone.
        unicode: Whether more than ASCII may be used; unless given, where standard output can encode it.
    """
    import io

    from rich.console import Console

    if width is None:
        width = shutil.get_terminal_size().columns
    if unicode is None:
        unicode = _can_encode(sys.stdout.encoding)
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
    if len(analyses) > 1:
        _overview(console, analyses)
    for analysis in analyses:
        if len(analyses) > 1:
            console.print()
            console.print("─" * console.width, style="dim")
        _run(console, analysis)
    text = "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())
    return text if unicode else ascii_only(text)


def _can_encode(encoding: str | None) -> bool:
    try:
        "▲⣿".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _overview(console: Console, analyses: Sequence[Analysis]) -> None:
    from rich.text import Text

    table = _grid(False, True, False, True)
    for a, source in zip(analyses, wording.short_sources(analyses), strict=True):
        table.add_row(
            Text(a.verdict.value.upper(), style=_VERDICT_STYLE[a.verdict]),
            Text(visible(source, 2 * console.width)),
            Text(wording.steps_logged(a.run)),
            Text(wording.tally(a.findings), style="dim"),
        )
    console.print(table)


def _run(console: Console, analysis: Analysis) -> None:
    from rich.text import Text

    run = analysis.run
    console.print(Text.assemble((analysis.verdict.value.upper(), _VERDICT_STYLE[analysis.verdict]), "  ", (visible(run.source), "bold")))
    console.print(Text(visible(wording.headline(analysis))))
    console.print()
    table = _grid(False, True)
    for fact in wording.facts(run):
        detail = Text.assemble((visible(fact.key, 60), ""), "  " if fact.key else "", (visible(fact.detail), "dim"))
        table.add_row(Text(fact.name, style="bold"), detail)
    console.print(table)
    if lines := chart(analysis, width=console.width):
        console.print()
        for line in lines:
            console.print(Text.assemble(*line), no_wrap=True, overflow="crop")
    _findings(console, analysis)
    if analysis.skipped:
        _heading(console, "Could not be judged")
        table = _grid(True, True)
        table.columns[0].max_width = 20
        for rules, reason in wording.skipped(analysis.skipped):
            table.add_row(Text(rules), Text(visible(reason), style="dim"))
        console.print(table)
    if run.notes:
        _heading(console, "Notes")
        table = _grid(False, True)
        for note in wording.notes(run):
            table.add_row("-", Text(visible(note), style="dim"))
        console.print(table)
    _next(console, analysis)


def _findings(console: Console, analysis: Analysis) -> None:
    from rich.text import Text

    if not analysis.findings:
        return
    _heading(console, "Findings")
    shown, left_out = wording.shortened(analysis)
    table = _grid(False, False, True)
    for f in shown:
        rule = Text.assemble((f"{f.rule} {f.severity.value}", _SEVERITY_STYLE[f.severity]), "\n", (f.name, "dim"))
        body = Text(visible(f.message))
        if parts := wording.evidence(f):
            body.append(f"\n{visible(' · '.join(parts))}", style="dim")
        table.add_row(rule, Text(wording.where(f)), body)
    console.print(table)
    if left_out:
        console.print(Text(wording.more(left_out), style="dim"))


def _next(console: Console, analysis: Analysis) -> None:
    from rich.text import Text

    commands = wording.next_commands(analysis)
    if commands:
        _heading(console, "Next")
        table = _grid(False, True)
        has_room = console.width > max(len(command) for command, _ in commands) + _LONGEST_REMARK
        for command, why in commands:
            table.add_row(Text(command), Text(why if has_room else "", style="dim"))
        console.print(table)


def _heading(console: Console, title: str) -> None:
    console.print()
    console.print(title, style="bold")


def _grid(*wraps: bool) -> Table:
    """Columns of text side by side."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for wrap in wraps:
        table.add_column(no_wrap=not wrap, overflow="fold")
    return table
