"""From the healthy norms to a number, or to the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from gradclip_cli.errors import UsageError
from gradclip_cli.model.run import Run, Steps, Values
from gradclip_cli.model.threshold import Candidate, Excluded, Method, Suggestion
from gradclip_cli.threshold.adaptive import autoclip, zclip
from gradclip_cli.threshold.candidates import PERCENTILES, candidates, percentile
from gradclip_cli.threshold.evidence import AT_BOUND, Evidence, evidence
from gradclip_cli.threshold.interval import interval
from gradclip_cli.threshold.notes import notes, reasons
from gradclip_cli.threshold.phases import STRONG_DRIFT, drift, phase_bounds, phases
from gradclip_cli.threshold.window import window
from gradclip_cli.threshold.wording import ordinal, place
from gradclip_cli.wording import count, number, share

SAFETY_NET = 99.0
"""Percentile of the safety net: it clips one healthy step in a hundred, and an explosion is 10 times the usual norm at least."""
LEAST_NORMS = 30
"""Of fewer healthy norms nobody knows what is usual (as rule GC306 has it)."""
LEAST_NET = 90.0
"""A lower percentile is no safety net, and not offered as one."""
WIDEST = 10.0
"""An interval over more than an order of magnitude is no answer."""
DEFAULT_NORM_TYPE = 2.0
_EMPTY: tuple[Steps, Values] = (np.empty(0, np.int64), np.empty(0))


def check_choice(percentile: float | None, target_clip_fraction: float | None) -> tuple[Method, float]:
    """Which percentile is asked.

    Raises:
        UsageError: Both are given, or one out of its range.
    """
    if percentile is not None and target_clip_fraction is not None:
        raise UsageError("a percentile and a target clip fraction were given; expected one of them", hint="leave one out")
    if percentile is not None:
        if not 0 < percentile < 100:
            raise UsageError(f"percentile {percentile:g}: expected a number between 0 and 100, both exclusive", hint="--percentile 99")
        return Method.PERCENTILE, percentile
    if target_clip_fraction is not None:
        if not 0 < target_clip_fraction < 1:
            message = f"target clip fraction {target_clip_fraction:g}: expected a number between 0 and 1, both exclusive"
            raise UsageError(message, hint="--target-clip-fraction 0.01 clips one step in a hundred")
        return Method.TARGET_CLIP_FRACTION, 100 * (1 - target_clip_fraction)
    return Method.SAFETY_NET, SAFETY_NET


def suggest_threshold(
    runs: Run | Sequence[Run],
    *,
    percentile: float | None = None,
    target_clip_fraction: float | None = None,
    from_step: int | None = None,
    to_step: int | None = None,
) -> Suggestion:
    """A `max_norm` from the gradient norms of a run, or of several runs pooled.

    Pure: the same runs give the same suggestion. Scaling all norms by a constant scales it by that constant. Norms that
    are not finite change nothing but their count.

    Args:
        percentile, target_clip_fraction: Choose otherwise than the safety net (the 99th percentile of the healthy norms).
        from_step, to_step: Look at these steps only, inclusive.

    Raises:
        UsageError: As `check_choice`; no run.
    """
    asked = check_choice(percentile, target_clip_fraction)
    given = [window(run, from_step, to_step) for run in ([runs] if isinstance(runs, Run) else runs)]
    if not given:
        raise UsageError("no run was given; expected at least one")
    seen = [evidence(run) for run in given if run.grad_norm is not None and len(run.grad_norm)]
    if len(given) == 1:
        return _of_one(given[0], seen[0] if seen else None, asked, (from_step, to_step))
    return _of_several(given, seen, asked)


def _of_one(run: Run, seen: Evidence | None, asked: tuple[Method, float], limits: tuple[int | None, int | None]) -> Suggestion:
    if seen is None:
        if run.grad_norm is None:
            return _nothing(
                [run], asked, "no gradient norm in this log", "log what clip_grad_norm_ returns, or name it with --grad-norm KEY"
            )
        return _nothing([run], asked, f"no gradient norm is logged {_between(run, limits)}", "widen --from-step and --to-step")
    return _suggest([seen], asked)


def _of_several(runs: Sequence[Run], seen: Sequence[Evidence], asked: tuple[Method, float]) -> Suggestion:
    """What can be pooled is; the rest is named."""
    usable, left_out = [], []
    for e in seen:
        cause = _cause(e, asked[0])
        if cause or e.ceiling is not None:
            left_out.append(f"{e.run.source} was left out: {cause[0] if cause else _censored(e, asked[1])[0]}")
        else:
            usable.append(e)
    without = [r.source for r in runs if r.grad_norm is None or not len(r.grad_norm)]
    left_out += [f"{source} was left out: no gradient norm" for source in without]
    if not usable:
        return replace(_nothing(runs, asked, "none of the runs can be used", "see the notes"), notes=tuple(left_out))
    result = _suggest(usable, asked)
    return replace(result, notes=(*left_out, *result.notes))


def _nothing(runs: Sequence[Run], asked: tuple[Method, float], refusal: str, hint: str) -> Suggestion:
    steps, values = _EMPTY
    return Suggestion(
        source=runs[0].source if len(runs) == 1 else f"{len(runs)} runs pooled",
        format=runs[0].format,
        method=asked[0],
        percentile=asked[1],
        norm_type=DEFAULT_NORM_TYPE,
        max_norm=None,
        low=None,
        high=None,
        refusal=refusal,
        hint=hint,
        clipped_fraction=None,
        block_length=0,
        steps_known=all(r.steps_known for r in runs),
        steps=steps,
        norms=values,
        exploding_steps=steps,
        exploding=values,
        excluded=Excluded(),
        own_max_norm=_own(runs),
        notes=runs[0].notes if len(runs) == 1 else (),
    )


def _suggest(seen: Sequence[Evidence], asked: tuple[Method, float]) -> Suggestion:
    method, p = asked
    norms = np.concatenate([e.norms for e in seen])
    exploding = np.concatenate([e.exploding for e in seen])
    base = replace(
        _nothing([e.run for e in seen], asked, "", ""),
        norm_type=_norm_type(seen),
        steps=np.concatenate([e.steps for e in seen]),
        norms=norms,
        exploding_steps=np.concatenate([e.exploding_steps for e in seen]),
        exploding=exploding,
        excluded=Excluded(**{f.name: sum(getattr(e.excluded, f.name) for e in seen) for f in fields(Excluded)}),
        pooled=tuple(e.run.source for e in seen) if len(seen) > 1 else (),
    )
    cause = _cause(seen[0], method) if len(seen) == 1 else None
    value = low = high = None
    length = 0
    if cause is None:
        value = percentile(norms, (p,))[0]
        low, high, length = interval(norms, p)
        if high > WIDEST * low:
            cause = _too_wide(norms, p, low, high)
        elif seen[0].ceiling is not None and high >= seen[0].ceiling * (1 - AT_BOUND):
            cause = _censored(seen[0], p)
        if cause is not None:
            value = low = high = None
    fraction = None if value is None else float(np.mean(norms > value))
    recommended = None if value is None else (p, value)
    table = candidates(norms, exploding, recommended, base.own_max_norm) if len(norms) >= LEAST_NORMS else ()
    parts = phases(seen, p, value)
    result = replace(
        base,
        max_norm=value,
        low=low,
        high=high,
        refusal=cause[0] if cause else "",
        hint=cause[1] if cause else "",
        clipped_fraction=fraction,
        block_length=length,
        candidates=tuple(c for c in table if _is_visible(c, seen[0])),
        phases=parts,
        drift=drift(parts),
    )
    if result.drift >= STRONG_DRIFT and len(seen) == 1:
        logged = seen[0].run.series["grad_norm"]
        rules = (autoclip(logged.steps, logged.values, p), zclip(logged.steps, logged.values))
        result = replace(result, adaptive=tuple(replace(a, phase_bounds=phase_bounds(a, seen[0].steps, len(parts))) for a in rules))
    return replace(result, reasons=reasons(result), notes=notes(seen, result))


def _cause(e: Evidence, method: Method) -> tuple[str, str] | None:
    """Why no percentile of these norms is a threshold for single steps, and what to do."""
    logged = e.run.series["grad_norm"]
    left = e.excluded
    if len(e.norms) < LEAST_NORMS:
        parts = [
            (left.nonfinite, "not finite"),
            (left.zero, "zero or below"),
            (left.exploding, "exploding"),
            (left.aftermath, "after the run diverged" if e.diverged_at is not None else "around explosions and loss spikes"),
            (left.warmup, "warm-up"),
        ]
        removed = ", ".join(f"{n:,} {what}" for n, what in parts if n)
        text = f"only {len(e.norms):,} healthy of {count(len(logged), 'logged norm')}" + (f" ({removed})" if removed else "")
        return f"{text}; it takes {LEAST_NORMS} to know what is usual", _more_norms(len(logged), left)
    if e.is_mean and method is not Method.PERCENTILE:
        text = (
            f"each logged norm is a mean over {e.spacing:,.0f} steps, and single steps reach far above such means: "
            "a threshold made from them would clip many healthy steps"
        )
        return text, "log the norm of every step; --percentile 99 takes the percentile of the means as they are"
    return None


def _more_norms(num_logged: int, left: Excluded) -> str:
    """What to do about too few healthy norms, by what most of the logged ones are."""
    if 2 * left.zero > num_logged:
        return "these are no norms of gradients: log what clip_grad_norm_ returns, or name it with --grad-norm KEY"
    if 2 * left.nonfinite > num_logged:
        return "`gradclip analyze` tells where they begin; take a run that stays finite"
    return "take a run that stays healthy for longer" if num_logged >= LEAST_NORMS else "log the norm at every step, or take a longer run"


def _censored(e: Evidence, p: float) -> tuple[str, str]:
    assert e.ceiling is not None
    reason = f" ({e.run.stage_reason})" if e.run.stage_reason else ""
    text = (
        f"the norms were logged after clipping{reason}: {share(1 - e.visible)} of them sit at {number(e.ceiling)} and nothing above it "
        f"can be seen, where the {ordinal(p)} and its interval reach"
    )
    visible = int(100 * e.visible) // 5 * 5
    below = f"; below the bound --percentile {visible} may do" if visible >= 10 else ""
    return text, f"log what clip_grad_norm_ returns, the norm from before clipping{below}"


def _too_wide(norms: Values, p: float, low: float, high: float) -> tuple[str, str]:
    text = (
        f"these norms say no more than that the {ordinal(p)} lies between {number(low)} and {number(high)}: "
        "too few, or too unsteady, to take a threshold from"
    )
    hint = "take a longer run, or the part that you trust with --from-step and --to-step"
    for lower in (q for q in PERCENTILES[::-1] if LEAST_NET <= q < p):
        low, high, _ = interval(norms, lower)
        if high <= WIDEST * low:
            value = percentile(norms, (lower,))[0]
            return text, f"{hint}; --percentile {lower:g} would be {number(value)} ({number(low)} to {number(high)})"
    return text, hint


def _is_visible(c: Candidate, e: Evidence) -> bool:
    return e.ceiling is None or c.max_norm < e.ceiling * (1 - AT_BOUND)


def _between(run: Run, limits: tuple[int | None, int | None]) -> str:
    first, last = limits
    if first is not None and last is not None:
        return f"at {place(run.steps_known, first, last)}"
    return f"from {place(run.steps_known, first)} on" if first is not None else f"up to {place(run.steps_known, last or 0)}"


def _own(runs: Sequence[Run]) -> float | None:
    """The bound that all the runs were clipped at; none where clipping was off."""
    bounds = {r.max_norm for r in runs}
    bound = bounds.pop()
    return bound if not bounds and bound is not None and np.isfinite(bound) and bound > 0 else None


def _norm_type(seen: Sequence[Evidence]) -> float:
    """As the watched clip calls had it, else as the header of the recording says."""
    parts = [p for e in seen if e.run.recorded is not None for p in e.run.recorded.parts.values()]
    clips = [event.get("p") for p in parts for event in p.events if event.get("k") == "clip" and event.get("how") == "norm"]
    told = {float(p) for p in clips or [p.header.get("norm_type") for p in parts] if isinstance(p, (int, float)) and p > 0}
    return told.pop() if len(told) == 1 else DEFAULT_NORM_TYPE
