"""The report for a terminal: verdict first, a small picture, the findings, what could not be judged, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradclip_cli.model.finding import Analysis, Severity, Verdict
from gradclip_cli.report import wording
from gradclip_cli.report.chart import chart
from gradclip_cli.report.escape import visible
from gradclip_cli.report.page import Page, grid, heading

if TYPE_CHECKING:
    from rich.console import Console

_VERDICT_STYLE = {
    Verdict.STABLE: "bold green",
    Verdict.EXPLODED: "bold yellow",
    Verdict.SPIKED: "bold yellow",
    Verdict.NONFINITE: "bold red",
    Verdict.DIVERGED: "bold red",
    Verdict.CANNOT_JUDGE: "bold",
}
_SEVERITY_STYLE = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: ""}
_LONGEST_REMARK = 30


def render_text(analyses: Sequence[Analysis], *, width: int | None = None, color: bool = False, unicode: bool | None = None) -> str:
    """The report, to be printed as it is.

    Args:
        width: Characters a line; the terminal's unless given (COLUMNS overrides).
        color: Whether to use the terminal's sixteen colours; nothing is said by colour alone.
        unicode: Whether more than ASCII may be used; unless given, where standard output can encode it.
    """
    page = Page(width=width, color=color, unicode=unicode)
    console = page.console
    if len(analyses) > 1:
        _overview(console, analyses)
    for analysis in analyses:
        if len(analyses) > 1:
            console.print()
            console.print("─" * console.width, style="dim")
        _run(console, analysis)
    return page.text


def _overview(console: Console, analyses: Sequence[Analysis]) -> None:
    from rich.text import Text

    table = grid(False, True, False, True)
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
    table = grid(False, True)
    for fact in wording.facts(run):
        detail = Text.assemble((visible(fact.key, 60), ""), "  " if fact.key else "", (visible(fact.detail), "dim"))
        table.add_row(Text(fact.name, style="bold"), detail)
    console.print(table)
    if lines := chart(analysis, width=console.width):
        console.print()
        for line in lines:
            console.print(Text.assemble(*line), no_wrap=True, overflow="crop")
    _findings(console, analysis)
    if (asked := analysis.what_if) is not None:
        title, sentences = wording.what_if_summary(asked)
        heading(console, title)
        console.print(Text(sentences))
    if analysis.skipped:
        heading(console, "Could not be judged")
        table = grid(True, True)
        table.columns[0].max_width = 20
        for rules, reason in wording.skipped(analysis.skipped):
            table.add_row(Text(rules), Text(visible(reason), style="dim"))
        console.print(table)
    if run.notes:
        heading(console, "Notes")
        table = grid(False, True)
        for note in wording.notes(run):
            table.add_row("-", Text(visible(note), style="dim"))
        console.print(table)
    _next(console, analysis)


def _findings(console: Console, analysis: Analysis) -> None:
    from rich.text import Text

    if not analysis.findings:
        return
    heading(console, "Findings")
    shown, left_out = wording.shortened(analysis)
    table = grid(False, False, True)
    for f in shown:
        rule = Text.assemble((f"{f.rule} {f.severity.value}", _SEVERITY_STYLE[f.severity]), "\n", (f.name, "dim"))
        body = Text(visible(f.message))
        if parts := wording.evidence(f):
            body.append(f"\n{visible(' · '.join(parts))}", style="dim")
        if effect := wording.what_if(analysis, f):
            body.append(f"\n{effect}")
        table.add_row(rule, Text(wording.where(f)), body)
    console.print(table)
    if left_out:
        console.print(Text(wording.more(left_out), style="dim"))


def _next(console: Console, analysis: Analysis) -> None:
    from rich.text import Text

    commands = wording.next_commands(analysis)
    if commands:
        heading(console, "Next")
        table = grid(False, True)
        has_room = console.width > max(len(command) for command, _ in commands) + _LONGEST_REMARK
        for command, why in commands:
            table.add_row(Text(command), Text(why if has_room else "", style="dim"))
        console.print(table)
