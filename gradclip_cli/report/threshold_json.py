"""The report of `gradclip suggest-threshold` for programs: `gradclip.threshold/1`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from gradclip_cli.model.threshold import AdaptiveSeries, Candidate, Phase, Suggestion
from gradclip_cli.report.json import json_number, json_text

SCHEMA = "gradclip.threshold/1"
_MOST_POINTS = 500


def render_threshold_json(suggestions: Sequence[Suggestion]) -> str:
    """Strict JSON in plain ASCII, the keys always in the same order.

    `max_norm`, `low`, `high` and `clipped_fraction` are null where the log does not support a number; `refusal` and `hint` say why
    and what to do. `steps` are those of the healthy norms, null where the log has none. Adaptive series are thinned to 500 points.
    """
    from gradclip_cli import __version__

    document = {"schema": SCHEMA, "gradclip_version": __version__, "runs": [_run(s) for s in suggestions]}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _run(s: Suggestion) -> dict[str, Any]:
    known = s.steps_known and len(s.steps) > 0
    return {
        "source": json_text(s.source),
        "format": s.format,
        "max_norm": _optional(s.max_norm),
        "norm_type": json_number(s.norm_type),
        "low": _optional(s.low),
        "high": _optional(s.high),
        "method": s.method.value,
        "percentile": json_number(s.percentile),
        "clipped_fraction": _optional(s.clipped_fraction),
        "refusal": json_text(s.refusal) or None,
        "hint": json_text(s.hint) or None,
        "steps": {
            "first": int(s.steps.min()) if known else None,
            "last": int(s.steps.max()) if known else None,
            "count": len(s.steps),
        },
        "excluded": asdict(s.excluded),
        "own_max_norm": _optional(s.own_max_norm),
        "block_length": s.block_length,
        "candidates": [_candidate(c) for c in s.candidates],
        "drift": json_number(s.drift),
        "phases": [_phase(p) for p in s.phases],
        "adaptive": [_adaptive(a, s.steps_known) for a in s.adaptive],
        "pooled": [json_text(source) for source in s.pooled],
        "reasons": [json_text(r) for r in s.reasons],
        "notes": [json_text(n) for n in s.notes],
    }


def _candidate(c: Candidate) -> dict[str, Any]:
    return {
        "label": c.label,
        "percentile": _optional(c.percentile),
        "max_norm": json_number(c.max_norm),
        "clipped_fraction": json_number(c.clipped_fraction),
        "exploding_caught": c.exploding_caught,
        "median_coef": json_number(c.median_coef),
        "worst_coef": json_number(c.worst_coef),
    }


def _phase(p: Phase) -> dict[str, Any]:
    return {
        "source": json_text(p.source) or None,
        "first_step": p.first_step,
        "last_step": p.last_step,
        "count": p.count,
        "median": json_number(p.median),
        "max_norm": json_number(p.max_norm),
        "clipped_fraction": None if np.isnan(p.clipped_fraction) else json_number(p.clipped_fraction),
    }


def _adaptive(a: AdaptiveSeries, steps_known: bool) -> dict[str, Any]:
    at = np.unique(np.linspace(0, len(a.steps) - 1, min(_MOST_POINTS, len(a.steps))).astype(np.intp))
    return {
        "rule": a.rule,
        "parameters": a.parameters,
        "clipped_fraction": json_number(a.clipped_fraction),
        "phase_max_norms": [json_number(b) for b in a.phase_bounds],
        "steps" if steps_known else "rows": a.steps[at].tolist(),
        "max_norms": [json_number(b) for b in a.bound[at].tolist()],
    }


def _optional(value: float | None) -> float | int | str | None:
    return None if value is None else json_number(value)
