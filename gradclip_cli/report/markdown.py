"""The report for a pull request or an issue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradclip_cli.model.finding import Analysis
from gradclip_cli.report import wording
from gradclip_cli.report.chart import chart
from gradclip_cli.report.escape import markdown, markdown_code

_CHART_WIDTH = 80


def render_markdown(analyses: Sequence[Analysis]) -> str:
    """GitHub's Markdown; every name and note is escaped, so that nothing in it becomes markup, a link or a mention."""
    blocks: list[str] = []
    if len(analyses) > 1:
        rows = (
            [f"**{a.verdict.value}**", markdown_code(source), wording.steps_logged(a.run), wording.tally(a.findings)]
            for a, source in zip(analyses, wording.short_sources(analyses), strict=True)
        )
        blocks.append(table(("verdict", "run", "read", "findings"), rows))
    for analysis in analyses:
        blocks += _run(analysis)
    return "\n\n".join(blocks) + "\n"


def _run(analysis: Analysis) -> list[str]:
    run = analysis.run
    facts = ([fact.name, markdown_code(fact.key) if fact.key else "", markdown(fact.detail)] for fact in wording.facts(run))
    blocks = [
        f"### {analysis.verdict.value}: {markdown_code(run.source)}",
        markdown(wording.headline(analysis)),
        table(("series", "key", "what was read"), facts),
    ]
    if lines := chart(analysis, width=_CHART_WIDTH):
        # A key in the picture cannot close the fence: it never begins a line.
        blocks.append("\n".join(["```text", *("".join(text for text, _ in line).rstrip() for line in lines), "```"]))
    if analysis.findings:
        shown, left_out = wording.shortened(analysis)
        rows = (
            [
                f"{f.rule} {f.name}",
                f.severity.value,
                wording.where(f),
                "<br>".join(markdown(s) for s in (f.message, " · ".join(wording.evidence(f)), wording.what_if(analysis, f)) if s),
            ]
            for f in shown
        )
        blocks += ["#### Findings", table(("rule", "severity", "steps", "what was found"), rows)]
        blocks += [f"{wording.more(left_out)}."] if left_out else []
    if (asked := analysis.what_if) is not None:
        title, sentences = wording.what_if_summary(asked)
        blocks += [f"#### {title}", markdown(sentences)]
    if analysis.skipped:
        blocks += ["#### Could not be judged", _list(f"{rules}: {markdown(reason)}" for rules, reason in wording.skipped(analysis.skipped))]
    if run.notes:
        blocks += ["#### Notes", _list(markdown(note) for note in wording.notes(run))]
    if commands := wording.next_commands(analysis):
        blocks += ["#### Next", _list(f"{markdown_code(command)}: {why}" for command, why in commands)]
    return blocks


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are escaped but for the bar."""
    # GitHub splits cells at "|" before it looks for code spans, and takes the backslash away in both.
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *escaped))


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
