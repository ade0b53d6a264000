"""Judging a run, and judging the loop of a recorded run: detection, rules, verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradclip_cli.detect import detect
from gradclip_cli.model.check import Check, Status, Target, Verification
from gradclip_cli.model.finding import Analysis, Finding, Severity, Skipped
from gradclip_cli.model.recorded import Recorded
from gradclip_cli.model.run import LR, Run
from gradclip_cli.rules import RULES, Rule, apply_rules, verdict_of
from gradclip_cli.rules.loop.clipped import by_clip
from gradclip_cli.rules.loop.notes import loop_notes
from gradclip_cli.wording import count


def analyze(run: Run) -> Analysis:
    """Everything that can be said of one run. Pure: the same run gives the same analysis."""
    found = detect(run.loss, run.grad_norm, run.series.get(LR))
    findings, skipped = apply_rules(run, found)
    return Analysis(run, found, verdict_of(found, findings), findings, skipped)


# Rules of the threshold that a short watched run can answer as well.
_THRESHOLD_RULES = ("GC201", "GC202")
# Fewer updates show too little of a loop.
_MIN_UPDATES = 2


def judge_loop(run: Run, source: str, *, crashed: str = "") -> Verification:
    """Whether the watched loop of a recorded run clips as it should.

    Args:
        source: What was run, for people.
        crashed: How the script ended where it did not end well.
    """
    assert run.recorded is not None
    rules = [r for r in RULES if r.id.startswith("GC4") or r.id in _THRESHOLD_RULES]
    of_loop, not_of_loop = apply_rules(
        run, detect(run.loss, run.grad_norm, run.series.get(LR)), [r for r in rules if r.id not in _THRESHOLD_RULES]
    )
    of_clips, not_of_clips = _judge_thresholds(run, [r for r in rules if r.id in _THRESHOLD_RULES])
    findings, skipped = (*of_clips, *of_loop), (*not_of_clips, *not_of_loop)
    part = run.recorded.parts[min(run.recorded.parts)]
    updates = len(part.steps)
    unjudged = {s.rule: s.reason for s in skipped}
    counted = {f.rule for f in findings if f.rule.startswith("GC4")}
    too_little = _too_little(run.recorded, crashed) or ([unjudged["GC410"]] if "GC410" in unjudged else [])
    alone = run.recorded.world_size > 1 and len(run.recorded.parts) == 1
    if counted:
        verdict = "fail"
    elif too_little or alone:
        verdict = "cannot-judge"
    else:
        verdict = "pass"
    checks = []
    for rule in rules:
        mine = [f for f in findings if f.rule == rule.id]
        if mine:
            status, detail = Status.FAIL, mine[0].message
        elif rule.id in unjudged:
            status, detail = Status.SKIP, unjudged[rule.id]
        else:
            status, detail = Status.PASS, "not seen"
        evidence = mine[0].evidence if mine else {}
        file, line = (mine[0].place if mine else None) or (None, None)
        # Every finding in the loop fails it, as the verdict has it, and so does its check in every report.
        severity = Severity.ERROR if rule.id in counted else mine[0].severity if mine else rule.severity
        checks.append(Check(rule.id, rule.name, status, detail, evidence, severity, file=file, line=line))
    header = part.header
    target = Target(str(header.get("device", "")), run.recorded.world_size, str(header.get("torch", "")))
    return Verification(source, target, updates, verdict, findings, tuple(checks), (*loop_notes(run), *too_little))


def _judge_thresholds(run: Run, rules: Sequence[Rule]) -> tuple[list[Finding], list[Skipped]]:
    """Of each clip of the loop what these rules find, told with its place; a rule that finds nothing and could not judge one is skipped."""
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    for clip in by_clip(run):
        if clip.unjudged:
            skipped += [Skipped(rule.id, clip.unjudged) for rule in rules]
            continue
        mine, left_out = apply_rules(clip.run, detect(clip.run.loss, clip.run.grad_norm, clip.run.series.get(LR)), rules)
        findings += [replace(f, message=clip.name + f.message, place=clip.place) for f in mine]
        skipped += [replace(s, reason=clip.name + s.reason) for s in left_out]
    told = {f.rule for f in findings}
    return findings, [s for s in {s.rule: s for s in reversed(skipped)}.values() if s.rule not in told]


def _too_little(recorded: Recorded, crashed: str) -> list[str]:
    """Why a record without a finding is no proof of a loop, a sentence each; empty where it is one."""
    part = recorded.parts[min(recorded.parts)]
    updates = len(part.steps)
    faults = {p.rank: p.header["fault"] for p in recorded.parts.values() if p.header.get("fault")}
    return [
        *([f"the script ended with {crashed} after {updates:,} updates"] if crashed else []),
        *(f"rank {rank} could not be watched to the end: {fault}" for rank, fault in faults.items()),
        *(["the record breaks off before the script ended"] if not (part.ended or crashed or faults) else []),
        *([f"only {count(updates, 'update')} of the optimizer, which shows too little of a loop"] if updates < _MIN_UPDATES else []),
    ]
