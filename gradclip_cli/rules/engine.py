"""Applying the table to a run, and the verdict that follows from the findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradclip_cli.model.detection import Detection
from gradclip_cli.model.finding import Finding, Hit, Severity, Skipped, Verdict
from gradclip_cli.model.run import GRAD_NORM, LOSS, Run
from gradclip_cli.rules.table import RULES, Rule
from gradclip_cli.rules.wording import Unjudged

# Fewer judged points than this, and silence says nothing.
MIN_JUDGED = 8

_MISSING = {GRAD_NORM: "no gradient norm in this log", LOSS: "no training loss in this log"}


def apply_rules(run: Run, found: Detection, rules: Sequence[Rule] = RULES) -> tuple[tuple[Finding, ...], tuple[Skipped, ...]]:
    """All findings, in the order of the table and of the steps within a rule, and the rules that could not judge."""
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    for rule in rules:
        missing = next((n for n in rule.needs if n not in run.series), None)
        if missing is not None:
            skipped.append(Skipped(rule.id, _MISSING[missing]))
            continue
        try:
            hits = rule.check(run, found)
        except Unjudged as e:
            skipped.append(Skipped(rule.id, e.reason))
            continue
        findings.extend(_finding(rule, hit, run) for hit in hits)
    return tuple(findings), tuple(skipped)


def _finding(rule: Rule, hit: Hit, run: Run) -> Finding:
    first, last, evidence, lead = hit.first_step, hit.last_step, dict(hit.evidence), hit.led_by
    if not run.steps_known and first is not None and last is not None:
        evidence |= {"first_row": first, "last_row": last}
        first = last = None
        if lead is not None:
            lead = replace(lead, first_step=None, lead_steps=None)
    return Finding(rule.id, rule.name, hit.severity or rule.severity, hit.message, first, last, evidence, lead, place=hit.place)


def verdict_of(found: Detection, findings: Sequence[Finding]) -> Verdict:
    """The worst that holds: diverged, nonfinite, spiked, exploded; else stable, or cannot-judge where too little was seen."""
    rules = {f.rule for f in findings if f.severity is not Severity.INFO}
    if found.diverged:
        return Verdict.DIVERGED
    if rules & {"GC104", "GC105", "GC303"}:
        return Verdict.NONFINITE
    if rules & {"GC102", "GC103"}:
        return Verdict.SPIKED
    if "GC101" in rules:
        return Verdict.EXPLODED
    return Verdict.STABLE if max(found.judged_norm, found.judged_loss) >= MIN_JUDGED else Verdict.CANNOT_JUDGE
