"""The report for programs: `gradclip.analysis/1`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradclip_cli.model.finding import Analysis, Finding
from gradclip_cli.model.run import CLIP_COEF, GRAD_NORM, LOSS, LOSS_SCALE, LR, MAX_NORM, Run, Series

SCHEMA = "gradclip.analysis/1"
_PERCENTILES = (50, 90, 95, 99)
_ORDER = (LOSS, GRAD_NORM, LR, LOSS_SCALE, CLIP_COEF)
# Known to rules, and no series of the schema.
_INNER = (MAX_NORM,)


def render_json(analyses: Sequence[Analysis]) -> str:
    """Strict JSON in plain ASCII, the keys always in the same order.

    Numbers that are not finite are the strings "nan", "inf", "-inf". Percentiles, min and max are
    those of the finite values (linear between neighbours), null where there are none; `count`
    includes the others. Steps are null where the log has none.
    """
    from gradclip_cli import __version__

    document = {"schema": SCHEMA, "gradclip_version": __version__, "runs": [_run(a) for a in analyses]}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _run(analysis: Analysis) -> dict[str, Any]:
    run = analysis.run
    steps = run.steps
    names = [n for n in _ORDER if n in run.series] + [n for n in run.series if n not in (*_ORDER, *_INNER)]
    return {
        "source": json_text(run.source),
        "format": run.format,
        "steps": {"first": _step(run, steps, 0), "last": _step(run, steps, -1), "count": len(steps)},
        "series": {json_text(n): _series(run, run.series[n]) for n in names},
        "verdict": analysis.verdict.value,
        "findings": [json_finding(f) for f in analysis.findings],
        "skipped": [{"rule": s.rule, "reason": json_text(s.reason)} for s in analysis.skipped],
        "notes": [json_text(n) for n in run.notes],
        **_what_if(analysis),
    }


def _what_if(analysis: Analysis) -> dict[str, Any]:
    asked = analysis.what_if
    if asked is None:
        return {}
    numbers = {"max_norm": json_number(asked.max_norm), "clipped_fraction": json_number(asked.clipped_fraction)}
    return {"what_if": {**numbers, "summary": asked.summary, "limit": asked.limit}}


def _series(run: Run, series: Series) -> dict[str, Any]:
    values = series.values
    is_finite = np.isfinite(values)
    finite = values if is_finite.all() else values[is_finite]
    summary: dict[str, Any] = {
        "key": json_text(series.key),
        "count": len(values),
        "nonfinite": len(values) - len(finite),
        "first_step": _step(run, series.steps, 0),
        "last_step": _step(run, series.steps, -1),
        "min": None,
        **{f"p{q}": None for q in _PERCENTILES},
        "max": None,
    }
    if len(finite):
        low, high = float(finite.min()), float(finite.max())
        # Between neighbours whose distance is no float64, interpolate at half size.
        half = 1.0 if math.isfinite(high - low) else 0.5
        quantiles = np.percentile(finite * half if half != 1 else finite, _PERCENTILES) / half
        summary |= {"min": low, **{f"p{q}": float(v) for q, v in zip(_PERCENTILES, quantiles, strict=True)}, "max": high}
    if series.name == GRAD_NORM:
        summary["stage"] = run.norm_stage.value
    return summary


def json_finding(f: Finding) -> dict[str, Any]:
    """A finding as every report for programs holds it."""
    result: dict[str, Any] = {
        "rule": f.rule,
        "name": f.name,
        "severity": f.severity.value,
        "message": json_text(f.message),
        "first_step": f.first_step,
        "last_step": f.last_step,
        "evidence": {name: json_number(value) for name, value in f.evidence.items()},
    }
    if f.led_by is not None:
        result["led_by"] = {"rule": f.led_by.rule, "first_step": f.led_by.first_step, "lead_steps": f.led_by.lead_steps}
    if f.what_if is not None:
        e = f.what_if
        result["what_if"] = {
            "message": e.message,
            "num_norms": e.num_norms,
            "num_clipped": e.num_clipped,
            "norm": json_number(e.norm),
            "coefficient": json_number(e.coefficient),
            "clipped_norm": json_number(e.clipped_norm),
            "own_coefficient": None if e.own_coefficient is None else json_number(e.own_coefficient),
        }
    return result


def _step(run: Run, steps: np.ndarray[Any, np.dtype[np.int64]], index: int) -> int | None:
    return int(steps[index]) if run.steps_known and len(steps) else None


def json_number(value: float) -> float | int | str:
    """A number as strict JSON can hold it."""
    if isinstance(value, (int, np.integer)):
        return int(value)
    return float(value) if math.isfinite(value) else str(float(value))


def json_text(text: str) -> str:
    r"""Lone surrogates (undecodable bytes of a path) spelled out as \udcff: escaped as JSON allows, many parsers refuse them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
