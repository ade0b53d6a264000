"""The values that cross from reading to judging to reporting. Frozen, numpy only, no I/O.

source -> reader -> Log -> assemble -> **Run** -> detect -> rules -> **Analysis** -> report

NaN is data, absence is absence: a step that was not logged is missing from that series' own `steps`;
a NaN in `values` was logged as NaN.
"""

from gradclip_cli.model.check import Check, Status, Suite, Target, Verification
from gradclip_cli.model.detection import Baseline, Detection, Explosion, Growth, Spike
from gradclip_cli.model.finding import Analysis, Finding, Hit, Lead, Severity, Skipped, Verdict
from gradclip_cli.model.recorded import RankPart, Recorded, TensorInfo
from gradclip_cli.model.run import (
    CLIP_COEF,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    LR,
    TENSOR_PREFIX,
    Damage,
    NormStage,
    Overflow,
    Rewind,
    Run,
    Sampling,
    Series,
    Steps,
    Values,
)

__all__ = [
    "CLIP_COEF",
    "GRAD_NORM",
    "LOSS",
    "LOSS_SCALE",
    "LR",
    "TENSOR_PREFIX",
    "Analysis",
    "Baseline",
    "Check",
    "Damage",
    "Detection",
    "Explosion",
    "Finding",
    "Growth",
    "Hit",
    "Lead",
    "NormStage",
    "Overflow",
    "RankPart",
    "Recorded",
    "Rewind",
    "Run",
    "Sampling",
    "Series",
    "Severity",
    "Skipped",
    "Spike",
    "Status",
    "Steps",
    "Suite",
    "Target",
    "TensorInfo",
    "Values",
    "Verdict",
    "Verification",
]
