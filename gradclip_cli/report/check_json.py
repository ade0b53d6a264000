"""The report of `gradclip check` for programs: `gradclip.check/1`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gradclip_cli.model.check import Check, Suite, overall
from gradclip_cli.report.check_wording import EXIT_STATUS, InForce
from gradclip_cli.report.json import json_number, json_text

SCHEMA = "gradclip.check/1"


def render_check_json(suites: Sequence[Suite], settings: Sequence[InForce]) -> str:
    """Strict JSON in plain ASCII, the keys always in the same order. Numbers that are not finite are the strings "nan", "inf", "-inf".

    `counts` is true for the checks that make the exit status 1, `required` for those that make it 3 when they are skipped.
    """
    from gradclip_cli import __version__

    judgement = overall(suites)
    document = {
        "schema": SCHEMA,
        "gradclip_version": __version__,
        "verdict": judgement.value,
        "exit_status": EXIT_STATUS[judgement],
        "policy": _policy(settings),
        "suites": [_suite(s) for s in suites],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def render_policy_json(settings: Sequence[InForce], rules: Sequence[tuple[str, str]]) -> str:
    """The policy alone: its settings, and for each rule the least severity that counts (null where it is not selected)."""
    document = {"schema": "gradclip.policy/1", "policy": _policy(settings), "rules": {rule: bar or None for rule, bar in rules}}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _policy(settings: Sequence[InForce]) -> dict[str, Any]:
    return {s.key: {"value": _value(s.value), "from": json_text(s.origin)} for s in settings}


def _suite(suite: Suite) -> dict[str, Any]:
    return {
        "name": json_text(suite.name),
        "verdict": suite.judgement.value,
        "checks": [_check(c) for c in suite.checks],
        "notes": [json_text(n) for n in suite.notes],
    }


def _check(check: Check) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": check.id,
        "name": check.name,
        "status": check.status.value,
        "severity": check.severity.value,
        "counts": check.counts,
        "required": check.required,
        "detail": json_text(check.detail),
        "evidence": {name: json_number(value) for name, value in check.evidence.items()},
    }
    if check.file is not None:
        document |= {"file": json_text(check.file), "line": check.line}
    if check.seconds is not None:
        document["seconds"] = check.seconds
    return document


def _value(value: object) -> object:
    if isinstance(value, tuple):
        return [_value(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, float)) else json_text(str(value))
