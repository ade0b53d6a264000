"""What the rules say of stored gradients. The ids, names and pages are those of `gradclip explain`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gradclip_cli.clipping.copies import MOST_ROUNDING
from gradclip_cli.clipping.sources import StoredStep
from gradclip_cli.errors import GradclipError
from gradclip_cli.model.finding import Finding, Severity
from gradclip_cli.model.replay import NonfiniteTensor, ReplayStep
from gradclip_cli.model.run import NormStage
from gradclip_cli.wording import count, number

# As GC203 for logs: a clipped norm is max_norm * G / (G + 1e-6), from a norm that float32 held.
_TOLERANCE = 1e-3
# As GC109 for logs.
_DOMINANT, _ALWAYS_DOMINANT = 0.5, 0.9
_FEW_STEPS = 3
_MOST_FINITE_HALF = 65504.0
# A norm that float32 added up may be off by a fifth for a billion elements.
SAME_NORM = 0.75
"""A norm below this part of the one that is told is of something else."""


def judge(
    steps: Sequence[ReplayStep], stored: Sequence[StoredStep], norm_type: float, failures: Sequence[GradclipError], *, partial: bool
) -> tuple[list[Finding], list[str]]:
    """The findings, and what can be said of the claims of the files beside them."""
    above, remarks = _claims(steps, stored, norm_type, partial=partial)
    remarks = [*_put_together(stored), *remarks, *_undone(steps, stored)]
    found = [*_nonfinite(steps), *above, *_overflowing(steps, stored), *_dominant(steps)]
    found += [Finding("GC307", "damaged-file", Severity.WARNING, f.message, None, None, {}) for f in failures]
    return found, remarks


def _nonfinite(steps: Sequence[ReplayStep]) -> list[Finding]:
    found = []
    for step in steps:
        if step.nonfinite:
            first = step.nonfinite[0]
            others = f", and {len(step.nonfinite) - 1:,} more tensors" if len(step.nonfinite) > 1 else ""
            text = f"the norm is {step.total_norm}: {described(first)}{others}"
            counts = {f"num_{k}": sum(getattr(t, f"num_{k}") for t in step.nonfinite) for k in ("nan", "inf", "neg_inf")}
            evidence = {"num_tensors": len(step.nonfinite), **counts}
            found.append(Finding("GC104", "nonfinite-norm", Severity.ERROR, text, step.step, step.step, evidence))
        elif not math.isfinite(step.total_norm):
            text = f"the norm is {step.total_norm}, with finite elements only: it is beyond float64"
            found.append(Finding("GC104", "nonfinite-norm", Severity.ERROR, text, step.step, step.step, {}))
    return found


def described(tensor: NonfiniteTensor) -> str:
    """ "l.0.weight holds 2 nan and 1 inf among 1,024 elements, the first at [0, 17]"."""
    counts = [f"{n:,} {what}" for n, what in ((tensor.num_nan, "nan"), (tensor.num_inf, "inf"), (tensor.num_neg_inf, "-inf")) if n]
    places = ", ".join(str(list(p)) for p in tensor.positions)
    return f"{tensor.name} holds {' and '.join(counts)} among {tensor.numel:,} elements, the first at {places}"


def _dominant(steps: Sequence[ReplayStep]) -> list[Finding]:
    by_name: dict[str, list[tuple[int, float]]] = {}
    judged = [s for s in steps if s.top_tensors and len(s.tensors) > 1]
    for step in judged:
        top = step.top_tensors[0]
        if top.share > _DOMINANT:
            by_name.setdefault(top.name, []).append((step.step, top.share))
    found = []
    for name, places in by_name.items():
        shares = [share for _, share in places]
        always = len(judged) >= _FEW_STEPS and len(places) == len(judged) and float(np.median(shares)) > _ALWAYS_DOMINANT
        low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
        often = f" at {len(places):,} of {len(judged):,} steps" if len(judged) > 1 else ""
        text = f"{name} makes up {low if low == high else f'{low} to {high}'} of the squared norm{often}"
        evidence = {"share_fraction": max(shares), "num_steps": len(places)}
        severity = Severity.WARNING if always else Severity.INFO
        found.append(Finding("GC109", "dominant-tensor", severity, text, places[0][0], places[-1][0], evidence))
    return found


def _claims(
    steps: Sequence[ReplayStep], stored: Sequence[StoredStep], norm_type: float, *, partial: bool
) -> tuple[list[Finding], list[str]]:
    """Whether gradients that are said to be clipped are within the bound."""
    clipped = [(step, s.claims) for step, s in zip(steps, stored, strict=True) if s.claims.stage is NormStage.POST_CLIP]
    if not clipped:
        return [], []
    checked = [(step, c.max_norm) for step, c in clipped if c.max_norm is not None and (c.norm_type or 2.0) == norm_type]
    remarks = []
    if len(checked) < len(clipped):
        untold = any(c.max_norm is None for _, c in clipped)
        why = "no max_norm is told" if untold else f"they were clipped by another norm than p = {norm_type:g}"
        remarks.append(f"{count(len(clipped) - len(checked), 'step')} said to be clipped; whether this is so was not checked: {why}")
    over = [(s, m) for s, m in checked if s.total_norm > m * (1 + _TOLERANCE)]
    at_bound = sum(abs(s.total_norm / m - 1) <= _TOLERANCE for s, m in checked)
    if checked and partial:
        remarks.append(f"{count(len(checked), 'step')} said to be clipped: where clipping acted cannot be seen in a part of the gradient")
    elif checked:
        below = sum(s.total_norm < m * (1 - _TOLERANCE) for s, m in checked)
        remarks.append(
            f"of {len(checked):,} steps said to be clipped {at_bound:,} are at the bound, where clipping acted, {below:,} below it and "
            f"{len(over):,} above it"
        )
    if not over:
        return [], remarks
    worst, bound = max(over, key=lambda pair: pair[0].total_norm / pair[1])
    share = f"{len(over):,} of {len(checked):,} steps said to be clipped"
    text = f"{share} exceed max_norm {bound:g}, up to {worst.total_norm:.4g} at step {worst.step}"
    evidence = {"num_steps": len(over), "largest_norm": worst.total_norm, "max_norm": bound}
    return [Finding("GC203", "above-max-norm", Severity.ERROR, text, over[0][0].step, over[-1][0].step, evidence)], remarks


def _put_together(stored: Sequence[StoredStep]) -> list[str]:
    """That the files of several ranks are one step."""
    joined = [s for s in stored if s.world_size > 1]
    if not joined:
        return []
    sizes = " or ".join(map(str, sorted({s.world_size for s in joined})))
    remarks = [f"{count(len(joined), 'step')} put together of the shards of {sizes} ranks"]
    rounding = [s.difference for s in joined if s.difference is not None and s.difference.fraction <= MOST_ROUNDING]
    if rounding:
        most = max(rounding, key=lambda d: d.fraction)
        remarks.append(f"what several ranks held differs by rounding ({most}); the lowest rank's was taken")
    return remarks


def _undone(steps: Sequence[ReplayStep], stored: Sequence[StoredStep]) -> list[str]:
    """That clipping was undone, or could be."""
    if undone := sum(s.claims.restored != 1 for s in stored):
        return [f"{count(undone, 'step')} saved after clipping: scaled back to the norm that the file tells"]
    norms = [(s.claimed_total_norm, s.step) for s in steps if s.stage is NormStage.POST_CLIP and s.claimed_total_norm is not None]
    finite = [pair for pair in norms if math.isfinite(pair[0])]
    if not finite:
        return []
    largest, step = max(finite)
    return [f"{count(len(finite), 'step')} saved after clipping, of norms up to {number(largest)} (step {step}): --unclip scales them back"]


def partial(steps: Sequence[ReplayStep], stored: Sequence[StoredStep], norm_type: float) -> str:
    """Why the norms are not those of the whole gradient, as a sentence without its end; empty where nothing says so."""
    alone = [s for s in stored if s.alone]
    if len(alone) == len(stored):
        return f"these are the shards that one rank held, and all numbers are of them alone: {alone[0].alone}"
    if alone:
        where = f"step {alone[0].step}: {alone[0].alone}"
        return f"at {len(alone):,} of {len(stored):,} steps these are the shards that one rank held ({where})"
    torn = [(s.step, s.difference) for s in stored if s.difference is not None and s.difference.fraction > MOST_ROUNDING]
    if torn:
        at, difference = torn[0]
        return (
            f"at {len(torn):,} of {len(stored):,} steps ranks differ in what all of them should hold alike (step {at}: {difference}), "
            "and the lowest rank's was taken"
        )
    differ = []
    for step, claims in zip(steps, (s.claims for s in stored), strict=True):
        told = claims.told_norm
        if told is None or (claims.norm_type or 2.0) != norm_type or not math.isfinite(step.total_norm):
            continue
        # What is above the bound of its clipping is a finding of its own.
        above = claims.stage is not NormStage.POST_CLIP and step.total_norm * SAME_NORM > told
        if step.total_norm < told * SAME_NORM or above:
            differ.append((step, told))
    if not differ:
        return ""
    step, told = differ[0]
    first = f"step {step.step}: norm {step.total_norm:.4g}, by what the file tells {told:.4g}"
    return (
        f"{count(len(differ), 'step')} do{'es' if len(differ) == 1 else ''} not hold the whole gradient, or not as it was ({first}): "
        "a rank's shard, a part of the parameters, or clipped since"
    )


def _overflowing(steps: Sequence[ReplayStep], stored: Sequence[StoredStep]) -> list[Finding]:
    """Finite float16 gradients whose norm float16 cannot hold: PyTorch's norm of them is inf, and clipping makes them zero."""
    over = []
    for step, s in zip(steps, stored, strict=True):
        halves = [n for t, n in zip(s.tensors, step.tensor_norms, strict=True) if t.dtype.name == "float16"]
        in_half = step.total_norm if len(halves) == len(s.tensors) else max(halves, default=0.0)
        if math.isfinite(step.total_norm) and in_half > _MOST_FINITE_HALF:
            over.append(step)
    if not over:
        return []
    worst = max(over, key=lambda step: step.total_norm)
    text = (
        f"at {len(over):,} of {len(steps):,} steps the norm of the float16 gradients is beyond float16 ({_MOST_FINITE_HALF:,.0f}): "
        "clip_grad_norm_ on them returns inf and makes them all zero"
    )
    evidence = {"num_steps": len(over), "largest_norm": worst.total_norm}
    return [Finding("GC505", "half-precision-norm", Severity.ERROR, text, over[0].step, over[-1].step, evidence)]
