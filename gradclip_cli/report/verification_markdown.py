"""The report of `gradclip verify` for a pull request or a job summary."""

from __future__ import annotations

from gradclip_cli.model.check import Verification
from gradclip_cli.report import verification_wording as wording
from gradclip_cli.report.escape import markdown, markdown_code
from gradclip_cli.report.markdown import table


def render_verification_markdown(verification: Verification) -> str:
    """GitHub's Markdown, the answer first; every name and message is escaped."""
    rows = ([f"**{r.word}**" if r.word.isupper() else r.word, markdown(r.check), markdown(r.detail)] for r in wording.table(verification))
    blocks = [
        f"### gradclip verify {markdown_code(verification.source)}: {wording.verdict_line(verification)}",
        markdown(wording.target(verification)),
        table(("", "check", "detail"), rows),
        *(f"Note: {markdown(n)}" for n in verification.notes),
        *(f"{f.rule} {f.name}: see `gradclip explain {f.rule}`" for f in wording.rules(verification)),
    ]
    return "\n\n".join(blocks) + "\n"
