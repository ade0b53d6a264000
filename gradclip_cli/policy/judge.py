"""A run judged by a policy: one check a rule, one for each thing that is asked beside the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradclip_cli.model.check import Check, Status, Suite
from gradclip_cli.model.finding import Analysis, Finding, Severity
from gradclip_cli.policy.drift import drift
from gradclip_cli.policy.limits import limits
from gradclip_cli.policy.policy import Known, Policy
from gradclip_cli.wording import span

_ORDER = list(Severity)


def judge(analysis: Analysis, policy: Policy, rules: Sequence[Known], baseline: Analysis | str | None = None) -> Suite:
    """The checks of one run. Pure: the same analysis and policy give the same suite.

    A finding that counts under the policy is a failure of severity error, any other is told with its
    own severity; a rule that could not judge is a skip with its reason.

    Args:
        rules: The rules that were applied to make the analysis.
        baseline: The run to compare with, or why there is none although one was asked for.
    """
    checks = [*limits(analysis, policy, rules), *(drift(analysis, baseline, policy) if baseline is not None else ())]
    checks += [_rule(rule, analysis, policy) for rule in rules if policy.bar(rule) is not None]
    return Suite(analysis.run.source, strict(checks) if policy.strict else tuple(checks), analysis.run.notes)


def unreadable(name: str, reason: str) -> Suite:
    """What stands for a run that could not be read."""
    return Suite(name, (Check("verdict", "verdict", Status.SKIP, reason, required=True),))


def strict(checks: Sequence[Check]) -> tuple[Check, ...]:
    """The same with every check that could not judge a failure."""
    return tuple(
        replace(c, status=Status.FAIL, severity=Severity.ERROR, detail=f"could not be judged: {c.detail}") if c.status is Status.SKIP else c
        for c in checks
    )


def _rule(rule: Known, analysis: Analysis, policy: Policy) -> Check:
    check = Check(rule.id, rule.name, Status.PASS, "nothing found")
    if hits := sorted((f for f in analysis.findings if f.rule == rule.id), key=lambda f: _ORDER.index(f.severity)):
        return _failure(check, hits, counts=policy.counts(rule, hits[0].severity))
    reason = next((s.reason for s in analysis.skipped if s.rule == rule.id), None)
    return check if reason is None else replace(check, status=Status.SKIP, detail=reason)


def _failure(check: Check, hits: Sequence[Finding], *, counts: bool) -> Check:
    worst = hits[0]
    evidence = dict(worst.evidence)
    if worst.first_step is not None and worst.last_step is not None:
        evidence |= {"first_step": worst.first_step, "last_step": worst.last_step}
    if len(hits) > 1:
        evidence["num_findings"] = len(hits)
    more = f" (and {len(hits) - 1:,} more)" if len(hits) > 1 else ""
    severity = Severity.ERROR if counts else worst.severity
    file, line = worst.place or (None, None)
    detail = f"{_where(worst)}{worst.message}{more}"
    return replace(check, status=Status.FAIL, severity=severity, detail=detail, evidence=evidence, file=file, line=line)


def _where(finding: Finding) -> str:
    """The steps of a finding, or its rows where the log has no steps."""
    unit, first, last = "step", finding.first_step, finding.last_step
    if first is None or last is None:
        unit, rows = "row", [finding.evidence.get(k) for k in ("first_row", "last_row")]
        if rows[0] is None or rows[1] is None:
            return ""
        first, last = int(rows[0]), int(rows[1])
    return f"{unit if first == last else unit + 's'} {span(first, last)}: "
