"""Judging a run: detection, rules, verdict."""

from __future__ import annotations

from gradclip_cli.detect import detect
from gradclip_cli.model import LR, Analysis, Run
from gradclip_cli.rules import apply_rules, verdict_of


def analyze(run: Run) -> Analysis:
    """Everything that can be said of one run. Pure: the same run gives the same analysis."""
    found = detect(run.loss, run.grad_norm, run.series.get(LR))
    findings, skipped = apply_rules(run, found)
    return Analysis(run, found, verdict_of(found, findings), findings, skipped)
