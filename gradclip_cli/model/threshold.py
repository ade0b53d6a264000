"""What `suggest-threshold` and the what-if say: a `max_norm` with its interval, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gradclip_cli.model.run import Steps, Values


class Method(StrEnum):
    """How the percentile was chosen."""

    SAFETY_NET = "safety-net"
    PERCENTILE = "percentile"
    TARGET_CLIP_FRACTION = "target-clip-fraction"


@dataclass(frozen=True, slots=True)
class Excluded:
    """Logged norms that the percentiles leave out, each counted once.

    Attributes:
        nonfinite: nan and inf.
        zero: Exactly 0 or below: a norm that was not computed, or a step without gradients.
        exploding: Ten times the usual norm or more, in an explosion.
        aftermath: The rest of an explosion; from a loss spike to its end; everything after a run diverged.
        warmup: Before the norm had settled or the learning rate had risen.
    """

    nonfinite: int = 0
    zero: int = 0
    exploding: int = 0
    aftermath: int = 0
    warmup: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A threshold and what it would have done to the norms of the run.

    Attributes:
        label: "p99", "0.5", "own" (the run's `max_norm`), "recommended".
        percentile: Of the healthy norms; None where the threshold was not made from one.
        clipped_fraction: Share of the healthy norms above it.
        exploding_caught: How many of the exploding norms lie above it.
        median_coef, worst_coef: min(1, max_norm / (norm + 1e-6)) over the healthy norms that it clips; 1 where it clips none.
    """

    label: str
    percentile: float | None
    max_norm: float
    clipped_fraction: float
    exploding_caught: int
    median_coef: float
    worst_coef: float


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the healthy norms: a quarter of a run, or one of several pooled runs.

    Attributes:
        source: Of pooled runs, which; "" within a run.
        first_step, last_step: None where the log has no steps.
        median: The usual norm.
        max_norm: The asked percentile of this part alone.
        clipped_fraction: Share of this part above the suggested `max_norm`; nan where there is none.
    """

    source: str
    first_step: int | None
    last_step: int | None
    count: int
    median: float
    max_norm: float
    clipped_fraction: float


@dataclass(frozen=True, eq=False, slots=True)
class AdaptiveSeries:
    """The thresholds an adaptive rule would have taken on the logged norms.

    Attributes:
        rule: "autoclip" or "zclip".
        parameters: As its authors call them, for people.
        steps: int64, shape (n,): of the finite norms.
        bound: float64, shape (n,): the norm above which the rule clips; NaN while it only collects.
        clipped: float64, shape (n,): the norm after it.
        clipped_fraction: Share of all finite norms that it clips.
        phase_bounds: Median bound in each of the phases; nan where it only collects.
    """

    rule: str
    parameters: str
    steps: Steps
    bound: Values
    clipped: Values
    clipped_fraction: float
    phase_bounds: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Suggestion:
    """A threshold for one run, or for several pooled ones.

    Attributes:
        source: The run, or "3 runs pooled".
        max_norm: The suggestion, or None where the log does not support one.
        low, high: Its interval, about 95 %: where the percentile of the process behind the run lies.
        refusal, hint: Why there is no number, and what to do; "" where there is one.
        percentile: Of the healthy norms, 0 to 100.
        norm_type: Of the logged norms: as recorded, otherwise 2, the default of `clip_grad_norm_`.
        clipped_fraction: Share of the healthy norms above `max_norm`; None without one.
        block_length: Rows in a block of the bootstrap; 0 where none was made.
        steps_known: False where rows are counted instead of steps.
        steps: int64, shape (n,): of the healthy norms; rows where steps are unknown.
        norms: float64, shape (n,): the healthy norms, in the order of the log.
        exploding_steps, exploding: The same for the exploding ones.
        excluded: What was left out.
        own_max_norm: The bound that the log tells, or None.
        pooled: The sources, where several runs were pooled.
        drift: Largest median of a phase / smallest; 1 with less than two phases.
        reasons: Why this number, a sentence each.
        notes: What to know before using it, a sentence each.
    """

    source: str
    format: str
    method: Method
    percentile: float
    norm_type: float
    max_norm: float | None
    low: float | None
    high: float | None
    refusal: str
    hint: str
    clipped_fraction: float | None
    block_length: int
    steps_known: bool
    steps: Steps
    norms: Values
    exploding_steps: Steps
    exploding: Values
    excluded: Excluded
    own_max_norm: float | None
    candidates: tuple[Candidate, ...] = ()
    phases: tuple[Phase, ...] = ()
    drift: float = 1.0
    adaptive: tuple[AdaptiveSeries, ...] = ()
    pooled: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Effect:
    """What clipping at `WhatIf.max_norm` would have done to the steps of one finding.

    Attributes:
        message: One sentence for people.
        num_norms: Logged norms within the finding.
        num_clipped: How many of them lie above the threshold.
        norm: The largest of them.
        coefficient: What its gradients would have been multiplied by; nan where clipping repairs nothing.
        clipped_norm: The norm after it.
        own_coefficient: The same at the run's own `max_norm`, None where the log does not tell it.
    """

    message: str
    num_norms: int
    num_clipped: int
    norm: float
    coefficient: float
    clipped_norm: float
    own_coefficient: float | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What clipping at another threshold would have done to a run.

    Attributes:
        clipped_fraction: Share of the finite norms above `max_norm`; nan where the log cannot tell.
        summary: One sentence on the whole run.
        limit: What such an answer cannot show.
    """

    max_norm: float
    clipped_fraction: float
    summary: str
    limit: str
