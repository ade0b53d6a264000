"""The report of `gradclip probe` for a pull request or an issue."""

from __future__ import annotations

from gradclip_cli.model.probe import Probe
from gradclip_cli.report import probe_wording as wording
from gradclip_cli.report.escape import markdown, markdown_code
from gradclip_cli.report.markdown import table
from gradclip_cli.report.wording import headline


def render_probe_markdown(probe: Probe) -> str:
    """GitHub's Markdown; every name and note is escaped."""
    blocks = [f"### Probe: {markdown_code(probe.source)}", markdown(wording.headline(probe))]
    if probe.planted:
        blocks.append(f"Planted: {', '.join(markdown_code(str(p)) for p in probe.planted)}.")
    blocks.append(table(wording.HEADER, ([markdown(cell) for cell in wording.row(t)] for t in probe.twins)))
    if len(probe.twins) == 1:
        blocks.append(markdown(headline(probe.twins[0].analysis)))
    facts = [f"max_norm {wording.name(t)}: {markdown(fact)}" for t in probe.twins for fact in wording.facts(t)]
    for title, lines in (("What clipping changed", probe.comparison), ("Notes", (*facts, *probe.notes))):
        if lines:
            blocks += [f"#### {title}", "\n".join(f"- {markdown(line)}" for line in lines)]
    if probe.planted:
        rows = ([wording.name(t), markdown_code(fault), found] for t in probe.twins for fault, found in wording.sightings(t))
        blocks += ["#### What `gradclip analyze` found of it", table(("max_norm", "planted", "found"), rows)]
    if commands := wording.next_commands(probe):
        blocks += ["#### Next", "\n".join(f"- {markdown_code(command)}" for command in commands)]
    return "\n\n".join(blocks) + "\n"
