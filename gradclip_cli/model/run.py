"""A run as it was read: its series, and what the reader saw on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.recorded import Recorded

if TYPE_CHECKING:
    import pandas as pd

Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

LOSS = "loss"
GRAD_NORM = "grad_norm"
LR = "lr"
LOSS_SCALE = "loss_scale"
CLIP_COEF = "clip_coef"
MAX_NORM = "max_norm"
TENSOR_PREFIX = "grad_norm/"
"""Series names. A per-tensor norm is `grad_norm/<tensor>`; the bound is a series where it varies, inf where none was in force."""


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


@dataclass(frozen=True, eq=False, slots=True)
class Series:
    """One logged quantity.

    Attributes:
        name: `loss`, `grad_norm`, `lr`, `loss_scale`, `clip_coef`, `max_norm` or `grad_norm/<tensor>`.
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
        key: The logged key that alone is concerned; None where everything logged there is. A run that does not use the
            key is not told.
    """

    where: str
    what: str
    lost: str
    key: str | None = None


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
        max_norm: The clipping bound, where the source tells it; the last one where it varies.
        steps_known: False where the log has no step and rows are counted instead.
        rewinds, overflows, damage: What the reader saw on the way.
        notes: Whatever the reader dropped, merged or guessed; one sentence each.
        recorded: What only our own recorder knows (norms per tensor, the trace of calls, batches).
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
    recorded: Recorded | None = None

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
