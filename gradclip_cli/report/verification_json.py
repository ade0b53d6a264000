"""The report of `gradclip verify` for programs: `gradclip.verify/1`."""

from __future__ import annotations

import json
from typing import Any

from gradclip_cli.model.check import Check, Verification
from gradclip_cli.report.json import json_finding, json_number, json_text

SCHEMA = "gradclip.verify/1"


def render_verification_json(verification: Verification) -> str:
    """Strict JSON in plain ASCII, the keys always in the same order. Numbers that are not finite are the strings "nan", "inf", "-inf".

    `updates` is there where a script was watched, `dtype` where the target has one,
    `file` and `line` of a check where its finding has a place.
    """
    target = verification.target
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "target": {
            "device": json_text(target.device),
            **({"dtype": target.dtype} if target.dtype is not None else {}),
            "world_size": target.world_size,
            "torch": json_text(target.torch),
        },
        **({"updates": verification.updates} if verification.updates is not None else {}),
        "verdict": verification.verdict,
        "findings": [json_finding(f) for f in verification.findings],
        "checks": [_check(c) for c in verification.checks],
        "notes": [json_text(n) for n in verification.notes],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _check(check: Check) -> dict[str, Any]:
    return {
        "id": check.id,
        "name": check.name,
        "status": check.status.value,
        "detail": json_text(check.detail),
        "evidence": {name: json_number(value) for name, value in check.evidence.items()},
        **({"file": json_text(check.file), "line": check.line} if check.file is not None else {}),
    }
