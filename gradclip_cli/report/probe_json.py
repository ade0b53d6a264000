"""The report of `gradclip probe` for programs: `gradclip.probe/1`."""

from __future__ import annotations

import json
import math
from typing import Any

from gradclip_cli.model.probe import Planted, Probe, Twin
from gradclip_cli.report.json import json_finding, json_number, json_text

SCHEMA = "gradclip.probe/1"


def render_probe_json(probe: Probe) -> str:
    """Strict JSON in plain ASCII, the keys always in the same order. `max_norm` is null where the norm was only measured."""
    from gradclip_cli import __version__

    document = {
        "schema": SCHEMA,
        "gradclip_version": __version__,
        "source": json_text(probe.source),
        "subject": json_text(probe.subject),
        "num_parameters": probe.num_parameters,
        "conditions": {key: json_text(v) if isinstance(v, str) else v for key, v in probe.conditions.items()},
        "planted": [_planted(p) for p in probe.planted],
        "twins": [_twin(t) for t in probe.twins],
        "comparison": [json_text(c) for c in probe.comparison],
        "notes": [json_text(n) for n in probe.notes],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _planted(planted: Planted) -> dict[str, Any]:
    return {"kind": planted.kind, "step": planted.step, "last_step": planted.last_step, "size": planted.size}


def _twin(twin: Twin) -> dict[str, Any]:
    return {
        "max_norm": None if math.isinf(twin.max_norm) else twin.max_norm,
        "label": twin.label,
        "source": json_text(twin.analysis.run.source),
        "verdict": twin.analysis.verdict.value,
        "recovered": twin.recovered,
        "final_loss": json_number(twin.final_loss),
        "worst_update": {"norm": json_number(twin.worst_update), "step": twin.worst_step or None},
        "num_updates": len(twin.steps),
        "num_clipped": twin.num_clipped,
        "num_dropped": twin.num_dropped,
        "update_s": json_number(twin.step_s),
        "ended": twin.ended or None,
        "sightings": [
            {"planted": _planted(s.planted), "found": [{"rule": rule, "first_step": step} for rule, step in s.found]}
            for s in twin.sightings
        ],
        "findings": [json_finding(f) for f in twin.analysis.findings],
    }
