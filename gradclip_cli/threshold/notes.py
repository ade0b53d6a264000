"""Why this number, and what to know before using it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gradclip_cli.model.run import NormStage
from gradclip_cli.model.threshold import AdaptiveSeries, Method, Phase, Suggestion
from gradclip_cli.threshold.evidence import Evidence
from gradclip_cli.threshold.phases import STRONG_DRIFT
from gradclip_cli.threshold.wording import ordinal, place
from gradclip_cli.wording import count, number, share, times

EXPLOSION = 10.0
"""What counts as an explosion at least: so many times the usual norm (rule GC101)."""
FEW_BEYOND = 3
WIDE = 2.0
LIMITER_FRACTION = 0.2
"""A bound that clips more of the healthy steps acts on the size of the ordinary step."""


def reasons(s: Suggestion) -> tuple[str, ...]:
    """A sentence each; none without a number."""
    if s.max_norm is None or s.low is None or s.high is None:
        return ()
    return tuple(_reasons(s, s.max_norm, s.low, s.high))


def _reasons(s: Suggestion, value: float, low: float, high: float) -> Iterator[str]:
    chosen = next(c for c in s.candidates if c.label == "recommended")
    what = {
        Method.SAFETY_NET: "a safety net should touch few healthy steps and every explosion",
        Method.PERCENTILE: "asked for",
        Method.TARGET_CLIP_FRACTION: f"asked to clip {share(1 - s.percentile / 100)} of the healthy steps",
    }[s.method]
    yield (
        f"the {ordinal(s.percentile)} of {count(len(s.norms), 'healthy norm')} ({what}); "
        f"of the healthy steps it clips, half are scaled by {number(chosen.median_coef)} or less, none by less than "
        f"{number(chosen.worst_coef)}"
    )
    num = len(s.exploding)
    if num and chosen.exploding_caught == num:
        yield (
            f"all {count(num, 'exploding step')} lie above it (norms from {number(float(s.exploding.min()))})"
            if num > 1
            else (f"the exploding step lies above it (norm {number(float(s.exploding[0]))})")
        )
    elif num:
        yield _missed(s, chosen.exploding_caught)
    else:
        usual = float(np.median(s.norms))
        scaled = min(1.0, value / (EXPLOSION * usual))
        would = f"be scaled by {number(scaled)}" if scaled < 1 else "pass, so wide is the spread of these norms"
        yield f"no step exploded here; one of {EXPLOSION:.0f} times the usual norm ({number(usual)}) would {would}"
    yield (
        f"the same training with other batches would give {number(low)} to {number(high)} in about 95 of 100 cases "
        f"(moving-block bootstrap, blocks of {count(s.block_length, 'norm')})"
    )


def _missed(s: Suggestion, caught: int) -> str:
    least = float(s.exploding.min())
    return (
        f"only {caught:,} of {count(len(s.exploding), 'exploding step')} lie above it: they exploded from a level far below the "
        f"ordinary norms of another part; a threshold just below {number(least)} would catch all, and clip "
        f"{share(float(np.mean(s.norms >= least)))} of the healthy steps"
    )


def notes(seen: Sequence[Evidence], s: Suggestion) -> tuple[str, ...]:
    """A sentence each, the gravest first."""
    lines = [*_drift(s)]
    for e in seen:
        about = f"{e.run.source}: " if len(seen) > 1 else ""
        lines += [about + text for text in _of_run(e, s)]
    if s.max_norm is not None:
        lines += _of_number(s)
    return tuple(lines)


def _of_run(e: Evidence, s: Suggestion) -> Iterator[str]:
    known = e.run.steps_known
    left = f"{count(e.excluded.aftermath, 'norm')} {{}} {_are(e.excluded.aftermath)} left out"
    if e.diverged_at is not None:
        from_there = f"; {left.format('from there on')}" if e.excluded.aftermath else ""
        yield f"the run diverged at {place(known, e.diverged_at)}{from_there}"
    elif e.excluded.aftermath:
        yield left.format("around explosions and loss spikes")
    if e.start.rows:
        yield _warmup(e)
    if e.rising_lr:
        yield "the learning rate rises to the end of this log: it shows the warm-up only, and later norms may be lower"
    elif e.start.long_ramp:
        yield "the learning rate rises for more than a quarter of the log; that part is not left out"
    if e.run.norm_stage is NormStage.UNKNOWN:
        yield (
            "the log does not tell whether its norms are from before clipping; they do not pile up at a maximum, so they are taken for that"
        )
    if e.is_mean:
        yield (
            f"each logged norm is a mean over {e.spacing:,.0f} steps: single steps vary more, so that more of them are clipped than "
            "is said here"
        )
    elif e.spacing >= 2:
        yield (
            f"one norm in {e.spacing:,.0f} steps is logged: a fair sample for a percentile, but explosions in between left no trace; "
            "if they are means over these steps the number is too low"
        )
    if s.own_max_norm is not None and e.ceiling is None:
        yield f"the run was clipped at {number(s.own_max_norm)}: its later norms, and so this number, may be others under another threshold"
    if e.run.damage:
        yield f"a part of the log could not be read ({count(len(e.run.damage), 'place')}); see `gradclip analyze`"
    yield from e.run.notes


def _warmup(e: Evidence) -> str:
    causes = []
    if e.start.settling:
        causes.append("the norm had not settled")
    if e.start.ramp:
        causes.append("the learning rate was rising")
    until = f" before {place(e.run.steps_known, int(e.steps[0]))}" if len(e.steps) else ""
    return f"{count(e.start.rows, 'norm')}{until} {_are(e.start.rows)} left out as warm-up: {' and '.join(causes)}"


def _are(n: int) -> str:
    return "is" if n == 1 else "are"


def _of_number(s: Suggestion) -> Iterator[str]:
    beyond = len(s.norms) * (1 - s.percentile / 100)
    if beyond < FEW_BEYOND:
        yield (
            f"{count(len(s.norms), 'healthy norm')} are few for the {ordinal(s.percentile)}: "
            f"it rests on the largest {'one' if beyond < 1 else 'few'} of them"
        )
    if s.low is not None and s.high is not None and s.high > WIDE * s.low:
        yield f"the interval is wide: the log knows the {ordinal(s.percentile)} only to within a factor of {number(s.high / s.low, 2)}"
    own = next((c for c in s.candidates if c.label == "own"), None)
    if own is not None and own.clipped_fraction > LIMITER_FRACTION:
        yield (
            f"the run's own max_norm {number(own.max_norm)} clips {share(own.clipped_fraction)} of the healthy steps: it limits the "
            "size of ordinary steps; raising it makes them larger (less so with Adam), so look at the learning rate too"
        )


def _drift(s: Suggestion) -> Iterator[str]:
    if s.drift < STRONG_DRIFT:
        return
    high = max(s.phases, key=lambda phase: phase.median)
    low = min(s.phases, key=lambda phase: phase.median)
    if s.pooled:
        yield (
            f"the runs differ {times(s.drift)} in their usual norm ({number(low.median)} in {low.source}, {number(high.median)} in "
            f"{high.source}): one threshold does not fit them all"
        )
        return
    first, last = s.phases[0], s.phases[-1]
    yield (
        f"the usual norm drifts {times(s.drift)} over the run ({number(first.median)} at {_steps(s, first)}, {number(last.median)} at "
        f"{_steps(s, last)}): a fixed threshold fits only part of it"
    )
    if s.max_norm is not None and last.median < s.max_norm / STRONG_DRIFT:
        yield (
            f"in the last part the threshold is {times(s.max_norm / last.median)} the usual norm, and what explodes by less passes; "
            f"for that part alone it would be {number(last.max_norm)}" + (f" (--from-step {last.first_step})" if s.steps_known else "")
        )
    yield from map(_adaptive, s.adaptive)


def _adaptive(series: AdaptiveSeries) -> str:
    name = {"autoclip": "AutoClip", "zclip": "ZClip"}[series.rule]
    start, end = (number(bound) for bound in (series.phase_bounds[0], series.phase_bounds[-1]))
    return (
        f"{name} ({series.parameters}), an adaptive rule, would have gone from {start} in the first part to {end} in the last, "
        f"and clipped {share(series.clipped_fraction)} of all logged norms"
    )


def _steps(s: Suggestion, phase: Phase) -> str:
    if phase.first_step is None or phase.last_step is None:
        return f"{'the first' if phase is s.phases[0] else 'the last'} {phase.count:,} rows"
    return place(True, phase.first_step, phase.last_step)
