"""The report for a GitHub Actions log: workflow commands, which GitHub shows as annotations of the run and of the changed lines."""

from __future__ import annotations

from collections.abc import Sequence

from gradclip_cli.model.check import Check, Status, Suite, overall
from gradclip_cli.model.finding import Severity
from gradclip_cli.report.check_wording import notes, rows
from gradclip_cli.report.escape import visible

_COMMAND = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render_github(suites: Sequence[Suite]) -> str:
    """A line for each failure (error, warning or notice by its severity) and each required check that could not judge (error).

    The other checks that could not judge share one notice a suite: of each kind GitHub shows ten
    annotations a step. Notes are lines of the job's log. No name and no message can end its line or
    begin a command. The escapes are those of the runner:
    https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
    """
    lines = []
    for suite in suites:
        name = visible(suite.name)
        failed = sorted((c for c in suite.checks if c.status is Status.FAIL), key=lambda c: not c.counts)
        lines += [_annotation(_COMMAND[c.severity], c, f"{name}: {visible(c.detail)}") for c in failed]
        lines += [_annotation("error", c, f"{name}: could not be judged: {visible(c.detail)}") for c in suite.checks if c.missing]
        if skipped := [c for c in suite.checks if c.status is Status.SKIP and not c.missing]:
            reasons = [f"{visible(row.check)}: {visible(row.detail)}" for row in rows(suite) if row.word == "skip"]
            lines.append(f"::notice title={len(skipped)} that could not judge::{_data(chr(10).join([name, *reasons]))}")
        lines += [f"gradclip: note: {name}: {visible(note)}" for note in notes(suite)]
    checks = [c for s in suites for c in s.checks]
    lines.append(f"gradclip: {overall(suites)}: {sum(c.counts for c in checks)} of {len(checks)} checks failed")
    return "\n".join(lines) + "\n"


def _annotation(command: str, check: Check, message: str) -> str:
    properties = {"file": visible(check.file)} if check.file else {}
    if check.file and check.line:
        properties["line"] = str(check.line)
    properties["title"] = visible(check.title)
    return f"::{command} {','.join(f'{k}={_property(v)}' for k, v in properties.items())}::{_data(message)}"


def _data(text: str) -> str:
    # The percent sign first: the runner undoes it last.
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
