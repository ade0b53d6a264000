"""The values that cross from reading to judging to reporting. Frozen, numpy only, no I/O.

source -> reader -> Log -> assemble -> **Run** -> detect -> rules -> **Analysis** -> report

NaN is data, absence is absence: a step that was not logged is missing from that series' own `steps`;
a NaN in `values` was logged as NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

LOSS = "loss"
GRAD_NORM = "grad_norm"
LR = "lr"
LOSS_SCALE = "loss_scale"
CLIP_COEF = "clip_coef"
TENSOR_PREFIX = "grad_norm/"
"""Series names. A per-tensor norm is `grad_norm/<tensor>`."""


class NormStage(StrEnum):
    """Whether a logged gradient norm is the one before clipping (what `clip_grad_norm_` returns) or after."""

    PRE_CLIP = "pre_clip"
    POST_CLIP = "post_clip"
    UNKNOWN = "unknown"


class Sampling(StrEnum):
    """What one logged value stands for when not every step is logged."""

    INSTANT = "instant"  # the value of the logged step alone; steps in between left no trace
    WINDOW_MEAN = "window_mean"  # a mean over the steps since the value before
    UNKNOWN = "unknown"


class Verdict(StrEnum):
    """The worst that holds for a run; see `gradclip explain verdicts`."""

    STABLE = "stable"
    EXPLODED = "exploded"
    SPIKED = "spiked"
    NONFINITE = "nonfinite"
    DIVERGED = "diverged"
    CANNOT_JUDGE = "cannot-judge"


class Severity(StrEnum):
    """How much a finding weighs; `info` never counts against a run."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, eq=False, slots=True)
class Series:
    """One logged quantity.

    Attributes:
        name: `loss`, `grad_norm`, `lr`, `loss_scale`, `clip_coef` or `grad_norm/<tensor>`.
        key: What the source calls it.
        steps: int64, shape (n,), strictly increasing. Optimizer updates as logged, or, where
            `Run.steps_known` is false, the number of the logged row counted from 0.
        values: float64, shape (n,). NaN and inf were logged as such.
        sampling: What a value stands for.
    """

    name: str
    key: str
    steps: Steps
    values: Values
    sampling: Sampling = Sampling.UNKNOWN

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of a source that could not be read.

    Attributes:
        where: The place: "byte 4096", "line 17", "record 3".
        what: What was found there and what was expected.
        lost: What is missing from the run because of it.
    """

    where: str
    what: str
    lost: str


@dataclass(frozen=True, eq=False, slots=True)
class Rewind:
    """The step counter went back: a resume from a checkpoint. The values logged later won.

    Attributes:
        resumed_at: First step logged after the restart.
        last_before: Last step logged before it.
        discarded: How many logged points of the main series were superseded.
        branch: The series as they stood before the restart (with some history, for judging what
            was thrown away), by name.
    """

    resumed_at: int
    last_before: int
    discarded: int
    branch: Mapping[str, Series]


@dataclass(frozen=True, slots=True)
class Overflow:
    """A step that a loss scaler skipped, as a text log reports it.

    Attributes:
        step: The update, or None where the line does not say.
        loss_scale: The scale it was reduced to, or None.
    """

    step: int | None
    loss_scale: float | None


@dataclass(frozen=True, eq=False)
class Run:
    """One training run, whatever it was read from.

    Attributes:
        source: The path it came from, with `#k` behind it where one source holds several runs.
        format: Name of the reader, as `gradclip analyze --help` lists them.
        series: By name.
        norm_stage: Where in the loop the logged norm was taken.
        stage_reason: Why we believe so, a clause for people.
        max_norm: The clipping bound, where the source tells it.
        steps_known: False where the log has no step and rows are counted instead.
        rewinds, overflows, damage: What the reader saw on the way.
        notes: Whatever the reader dropped, merged or guessed; one sentence each.
    """

    source: str
    format: str
    series: Mapping[str, Series]
    norm_stage: NormStage = NormStage.UNKNOWN
    stage_reason: str = ""
    max_norm: float | None = None
    steps_known: bool = True
    rewinds: tuple[Rewind, ...] = ()
    overflows: tuple[Overflow, ...] = ()
    damage: tuple[Damage, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def loss(self) -> Series | None:
        return self.series.get(LOSS)

    @property
    def grad_norm(self) -> Series | None:
        return self.series.get(GRAD_NORM)

    @property
    def steps(self) -> Steps:
        """All logged steps, int64, sorted, each once."""
        if not self.series:
            return np.empty(0, np.int64)
        vectors = [s.steps for s in self.series.values()]
        if all(v is vectors[0] or np.array_equal(v, vectors[0]) for v in vectors[1:]):
            return vectors[0]
        return np.unique(np.concatenate(vectors))

    def to_frame(self) -> pd.DataFrame:
        """A pandas frame indexed by step, a column a series.

        A step that a series did not log is NaN there, as pandas has no other way to say it; so a
        logged NaN can no longer be told from a missing value. Judge on `series`, export with this.
        """
        import pandas as pd

        columns = {name: pd.Series(s.values, index=s.steps) for name, s in self.series.items()}
        return pd.DataFrame(columns).rename_axis("step" if self.steps_known else "row")


@dataclass(frozen=True, eq=False, slots=True)
class Baseline:
    """What was usual at each point of a series, and how high a point had to be to raise an alarm.

    Attributes:
        level: float64, shape (n,): usual value; NaN where there was too little history.
        bound: float64, shape (n,): the alarm bound; NaN likewise.
    """

    level: Values
    bound: Values


@dataclass(frozen=True, slots=True)
class Explosion:
    """A stretch of points of `grad_norm` far above the usual norm. Indices into the series, inclusive.

    Attributes:
        first, last, peak: Indices.
        level: The usual norm before it.
        ratio: Norm at the peak / level.
    """

    first: int
    last: int
    peak: int
    level: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Spike:
    """A stretch of points of `loss` above what was expected. Indices into the series, inclusive.

    Attributes:
        first, last, peak: Indices. `last` is where it came back, or the last point when it did not.
        level: The expected loss before it.
        height: Loss at the peak - level.
        recovered: True, False, or None where the log ends too soon to tell.
        excess: How far the loss stays above the expected level at the end, as a fraction of that
            level (0 when recovered).
        fatal: True where the run counts as diverged because of it.
        led_by: Index into `Detection.explosions` of the explosion that preceded it.
    """

    first: int
    last: int
    peak: int
    level: float
    height: float
    recovered: bool | None
    excess: float = 0.0
    fatal: bool = False
    led_by: int | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """A sustained rise of the norm's level. Indices into `grad_norm`, inclusive.

    Attributes:
        first, last: Where the rise began and where the level stopped rising (or the next event began).
        factor: Level at `last` / level at `first`.
    """

    first: int
    last: int
    factor: float


@dataclass(frozen=True, eq=False, slots=True)
class Detection:
    """What `detect` found. Indices refer to the series of the run that was given.

    Attributes:
        explosions, spikes, growths: In time order.
        recurring: Indices into `loss` of short rises that come round so regularly or so often, without
            explosions, that they were taken for the way of these data and not for spikes.
        collapses: First and last indices into `loss`, inclusive, of falls that no learning makes: within one row to
            exactly zero for good or for long, or from above zero to far below it.
        norm, loss: Baselines, for pictures; None where there is no such series.
        judged_norm, judged_loss: How many points had enough history to be judged.
        diverged: The run never came back, or ended non-finite.
    """

    explosions: tuple[Explosion, ...] = ()
    spikes: tuple[Spike, ...] = ()
    growths: tuple[Growth, ...] = ()
    recurring: tuple[int, ...] = ()
    collapses: tuple[tuple[int, int], ...] = ()
    norm: Baseline | None = None
    loss: Baseline | None = None
    judged_norm: int = 0
    judged_loss: int = 0
    diverged: bool = False


@dataclass(frozen=True, slots=True)
class Lead:
    """The explosion that preceded a spike. Steps are None where the log has none."""

    rule: str
    first_step: int | None
    lead_steps: int | None


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule function yields; the engine adds id, name and severity from the table.

    Attributes:
        message: One sentence for people.
        first_step, last_step: As `Series.steps` counts (rows where steps are unknown; the engine
            turns those into None), or None where no place applies.
        evidence: Name with unit -> number.
        severity: When it differs from the rule's own.
    """

    message: str
    first_step: int | None = None
    last_step: int | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)
    led_by: Lead | None = None
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A hit with its rule. `evidence` numbers may be nan or inf."""

    rule: str
    name: str
    severity: Severity
    message: str
    first_step: int | None
    last_step: int | None
    evidence: Mapping[str, float]
    led_by: Lead | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A rule that could not judge, and why."""

    rule: str
    reason: str


@dataclass(frozen=True, eq=False, slots=True)
class Analysis:
    """A run and everything that was found in it: what reports are made of."""

    run: Run
    detection: Detection
    verdict: Verdict
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
