"""What clipping at another threshold would have done to the flagged steps of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradclip_cli.errors import UsageError
from gradclip_cli.model.finding import Analysis, Finding
from gradclip_cli.model.run import NormStage, Run, Values
from gradclip_cli.model.threshold import Effect, WhatIf
from gradclip_cli.threshold.candidates import coefficient
from gradclip_cli.wording import count, number, share

_FLAGGED = ("GC101", "GC102", "GC103", "GC104", "GC106")
"""Rules whose steps carry gradients that clipping could have changed."""
LIMIT = "a step that is clipped changes all that come after it: what follows the first of them in this log might not have happened"


def check_max_norm(max_norm: float) -> None:
    """A threshold that clips.

    Raises:
        UsageError: It is not a positive finite number.
    """
    if not (np.isfinite(max_norm) and max_norm > 0):
        raise UsageError(f"max_norm {max_norm:g}: expected a positive finite number", hint="--max-norm 1.0")


def what_if(analysis: Analysis, max_norm: float) -> Analysis:
    """The analysis with what clipping at `max_norm` would have done: to each flagged step (`Finding.what_if`), to the run (`what_if`).

    Raises:
        UsageError: As `check_max_norm`.
    """
    check_max_norm(max_norm)
    run = analysis.run
    if run.grad_norm is None:
        return replace(analysis, what_if=_untold(max_norm, "no gradient norm in this log"))
    if run.norm_stage is NormStage.POST_CLIP:
        return replace(analysis, what_if=_untold(max_norm, "the norms were logged after clipping"))
    findings = tuple(replace(f, what_if=_effect(analysis, f, max_norm)) if f.rule in _FLAGGED else f for f in analysis.findings)
    return replace(analysis, findings=findings, what_if=_on_the_run(run, max_norm))


def _untold(max_norm: float, why: str) -> WhatIf:
    return WhatIf(max_norm, float("nan"), f"{why}: what it would have done cannot be told", LIMIT)


def _on_the_run(run: Run, max_norm: float) -> WhatIf:
    values = run.series["grad_norm"].values
    norms = values[np.isfinite(values)]
    if not len(norms):
        return _untold(max_norm, "no finite gradient norm in this log")
    clipped = norms[norms > max_norm]
    text = f"it would have clipped {len(clipped):,} of {count(len(norms), 'finite norm')} ({share(len(clipped) / len(norms))})"
    if len(clipped):
        coef = coefficient(clipped, max_norm)
        text += f", half of them to {number(float(np.median(coef)))} times their length or less, the largest to {number(float(coef.min()))}"
    return WhatIf(max_norm, len(clipped) / len(norms), text, LIMIT)


def _effect(analysis: Analysis, finding: Finding, max_norm: float) -> Effect | None:
    run = analysis.run
    first, last = _steps(finding)
    if first is None or last is None:
        return None
    spike = None
    loss, norm = run.loss, run.series["grad_norm"]
    if finding.rule in ("GC102", "GC103") and loss is not None:
        spike = next((s for s in analysis.detection.spikes if int(loss.steps[s.first]) == first), None)
    if spike is not None and spike.led_by is not None:
        explosion = analysis.detection.explosions[spike.led_by]
        return _of_norms(run, norm.values[explosion.first : explosion.last + 1], max_norm, "the explosion before it")
    a, b = np.searchsorted(norm.steps, first), np.searchsorted(norm.steps, last, "right")
    return _of_norms(run, norm.values[a:b], max_norm, "")


def _steps(finding: Finding) -> tuple[int | None, int | None]:
    """Steps, or rows where the log has none."""
    if finding.first_step is not None:
        return finding.first_step, finding.last_step
    rows = [finding.evidence.get(name) for name in ("first_row", "last_row")]
    return (int(rows[0]), int(rows[1])) if rows[0] is not None and rows[1] is not None else (None, None)


def _of_norms(run: Run, values: Values, max_norm: float, what: str) -> Effect | None:
    if not len(values):
        return None
    finite = values[np.isfinite(values)]
    if not len(finite):
        is_nan = bool(np.isnan(values).any())
        text = "clipping repairs nothing here: one nan makes every gradient nan, one inf zeroes every finite one"
        norm = float("nan") if is_nan else float("inf")
        return Effect(text, len(values), 0, norm, float("nan"), float("nan"))
    top = float(finite.max())
    num_clipped = int((finite > max_norm).sum())
    coef = float(coefficient(finite, max_norm).min())
    bound = run.max_norm if run.max_norm is not None and np.isfinite(run.max_norm) and run.max_norm > 0 else None
    own = None if bound is None else float(coefficient(np.array([top]), bound)[0])
    return Effect(_sentence(len(values), num_clipped, top, coef, own, what), len(values), num_clipped, top, coef, coef * top, own)


def _sentence(num: int, num_clipped: int, top: float, coef: float, own: float | None, what: str) -> str:
    if not num_clipped:
        return f"{what or ('its norm' if num == 1 else 'every norm here')} lies below: nothing would have changed"
    subject = f"{what} (norm {number(top)})" if what else f"the gradient of norm {number(top)}"
    text = f"{subject} would have been scaled by {number(coef)}, to {number(coef * top)}"
    if own is not None and own < 1:
        text += f" (by {number(own)} at the run's own max_norm)"
    if num > 1:
        text += f"; {num_clipped:,} of {count(num, 'norm')} here clipped"
    return text
