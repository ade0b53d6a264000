"""The report of `gradclip probe` for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradclip_cli.model.finding import Verdict
from gradclip_cli.model.probe import Probe
from gradclip_cli.report import probe_wording as wording
from gradclip_cli.report.chart import chart
from gradclip_cli.report.escape import visible
from gradclip_cli.report.page import Page, grid, heading
from gradclip_cli.report.wording import headline

if TYPE_CHECKING:
    from rich.console import Console

_ROWS_ALONE, _ROWS = 6, 3


def render_probe_text(probe: Probe, *, width: int | None = None, color: bool = False, unicode: bool | None = None) -> str:
    """What was trained, the twins in a table, what clipping changed, each twin's curves; see `Page` for the arguments."""
    from rich.text import Text

    page = Page(width=width, color=color, unicode=unicode)
    console = page.console
    console.print(Text.assemble(("PROBE", "bold"), "  ", (visible(probe.source), "bold")))
    console.print(Text(visible(wording.headline(probe))))
    console.print(Text.assemble("planted  ", (visible(wording.planted(probe)), "bold" if probe.planted else "dim")))
    _twins(console, probe)
    if len(probe.twins) == 1:
        console.print(Text(visible(headline(probe.twins[0].analysis))))
    if probe.comparison:
        heading(console, "What clipping changed")
        _list(console, probe.comparison)
    if probe.planted:
        _found(console, probe)
    for twin in probe.twins:
        lines = chart(twin.analysis, width=console.width, rows=_ROWS_ALONE if len(probe.twins) == 1 else _ROWS)
        heading(console, f"max_norm {wording.name(twin)}")
        for line in lines:
            console.print(Text.assemble(*line))
    if probe.notes:
        heading(console, "Notes")
        _list(console, probe.notes)
    if commands := wording.next_commands(probe):
        heading(console, "Next")
        for command in commands:
            console.print(Text(command), soft_wrap=True)
    return page.text


def _twins(console: Console, probe: Probe) -> None:
    from rich.text import Text

    console.print()
    table = grid(False, True, False, False, False, False)
    for column in table.columns[2:]:
        column.justify = "right"
    table.add_row(*(Text(name, style="dim") for name in wording.HEADER))
    for twin in probe.twins:
        cells = [Text(visible(cell)) for cell in wording.row(twin)]
        cells[0].stylize("bold")
        cells[1].stylize("green" if twin.analysis.verdict is Verdict.STABLE else "red")
        table.add_row(*cells)
    console.print(table)
    for twin in probe.twins:
        for fact in wording.facts(twin):
            console.print(Text(f"max_norm {wording.name(twin)}: {visible(fact)}", style="dim"))


def _found(console: Console, probe: Probe) -> None:
    from rich.text import Text

    heading(console, "What analyze found of it")
    table = grid(False, False, True)
    for twin in probe.twins:
        for fault, found in wording.sightings(twin):
            table.add_row(Text(wording.name(twin), style="bold"), Text(visible(fault)), Text(found))
    console.print(table)


def _list(console: Console, lines: tuple[str, ...]) -> None:
    from rich.text import Text

    table = grid(False, True)
    for line in lines:
        table.add_row("-", Text(visible(line)))
    console.print(table)
