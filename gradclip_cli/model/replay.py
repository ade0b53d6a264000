"""What `replay` finds in stored gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradclip_cli.model.finding import Finding
from gradclip_cli.model.run import NormStage, Values


@dataclass(frozen=True, slots=True)
class Clip:
    """What global norm clipping at one bound does to a step.

    Attributes:
        coefficient: `min(1, max_norm / (total_norm + 1e-6))`.
        clipped_norm: The norm afterwards.
        cosine: Of the angle between the gradient before and after; nan where there is no direction left.
        update_norm: L2 norm of what a real optimizer then did to the parameters; None where none was run, nan where it was
            left out.
    """

    max_norm: float
    coefficient: float
    clipped_norm: float
    cosine: float
    update_norm: float | None = None

    @property
    def acts(self) -> bool:
        """Whether it changes the gradient by more than the 1e-6 that PyTorch adds to the norm."""
        return self.coefficient < 1 - 1e-5


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another operation on the same step, beside global clipping at the first bound.

    Attributes:
        how: "global", "per-tensor", "per-group" or "value".
        bound: The max_norm of each part, or the largest absolute value.
        clipped_norm, cosine: As of `Clip`.
        changed_fraction: Of the elements, tensors or groups that it changed.
        lowest_coefficient: Of the parts; None for values.
    """

    how: str
    bound: float
    clipped_norm: float
    cosine: float
    changed_fraction: float
    lowest_coefficient: float | None

    @property
    def angle_degrees(self) -> float:
        """How far the direction was turned."""
        if not math.isfinite(self.cosine):
            return math.nan
        # Nearer to 1 than this is rounding, which the arc cosine would turn into a millionth of a degree.
        return 0.0 if self.cosine > 1 - 1e-15 else math.degrees(math.acos(max(self.cosine, -1.0)))


@dataclass(frozen=True, slots=True)
class TensorShare:
    """A tensor's part of the norm: its own norm, and its share of the squared L2 norm of all (0..1)."""

    name: str
    share: float
    norm: float


@dataclass(frozen=True, slots=True)
class NonfiniteTensor:
    """A tensor with elements that are no finite numbers, and where the first of them stand."""

    name: str
    numel: int
    num_nan: int
    num_inf: int
    num_neg_inf: int
    positions: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False, slots=True)
class ReplayStep:
    """The gradients of one optimizer update.

    Attributes:
        source: The file or checkpoint.
        total_norm: The p-norm over all tensors, without the loss scale.
        clips: One for each bound, in the order given.
        alternatives: Other operations with the first bound.
        top_tensors: The largest shares first; empty where the norm is zero or not finite.
        nonfinite: The tensors that make the norm nan or inf.
        tensor_norms: float64, shape (num tensors,): the p-norm of each tensor, in the order of `tensors`.
        stage, claimed_max_norm, claimed_total_norm, loss_scale: What the file says of itself; the norm is that from before
            clipping. The stage is that of the values as they are shown, so before clipping where it was undone.
        update_norm: L2 norm of what a real optimizer did without clipping; as `Clip.update_norm`.
        histogram: int64, shape (2048,): bin k counts magnitudes in [2**(k - 1023), 2**(k - 1022)), bin 0 zeros.
    """

    step: int
    source: str
    numel: int
    total_norm: float
    clips: tuple[Clip, ...]
    alternatives: tuple[Alternative, ...]
    top_tensors: tuple[TensorShare, ...]
    nonfinite: tuple[NonfiniteTensor, ...]
    tensors: tuple[str, ...]
    tensor_norms: Values
    stage: NormStage
    claimed_max_norm: float | None
    claimed_total_norm: float | None
    loss_scale: float
    update_norm: float | None = None
    histogram: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class OptimizerReplay:
    """The optimizer that consecutive gradients were run through: its name and the arguments it was made with."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, eq=False, slots=True)
class Replay:
    """All steps of a set of gradients.

    Attributes:
        source: The paths as they were given.
        format: How the gradients are stored.
        dtypes: Names, the most elements first.
        norm_type: p.
        max_norms, clip_values: The bounds that were asked for, or that the files tell.
        notes: What was guessed, left out, or could not be seen.
        partial: Why the norms are not those of the whole gradient; empty where nothing says so.
        world_size: Of how many ranks' shards the tensors were put together; 1 where they were stored as they are.
    """

    source: str
    format: str
    dtypes: tuple[str, ...]
    norm_type: float
    max_norms: tuple[float, ...]
    clip_values: tuple[float, ...]
    steps: tuple[ReplayStep, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    optimizer: OptimizerReplay | None = None
    partial: str = ""
    world_size: int = 1
