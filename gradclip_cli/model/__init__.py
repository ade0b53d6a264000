"""The values that cross from reading to judging to reporting. Frozen, numpy only, no I/O.

source -> reader -> Log -> assemble -> **Run** -> detect -> rules -> **Analysis** -> report

NaN is data, absence is absence: a step that was not logged is missing from that series' own `steps`;
a NaN in `values` was logged as NaN.
"""

from gradclip_cli.model.check import Check, Judgement, Status, Suite, Target, Verification, overall
from gradclip_cli.model.detection import Baseline, Detection, Explosion, Growth, Spike
from gradclip_cli.model.finding import Analysis, Finding, Hit, Lead, Severity, Skipped, Verdict
from gradclip_cli.model.probe import Planted, Probe, Sighting, Twin
from gradclip_cli.model.recorded import RankPart, Recorded, Shards, TensorInfo, shards_of
from gradclip_cli.model.replay import Alternative, Clip, NonfiniteTensor, OptimizerReplay, Replay, ReplayStep, TensorShare
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
from gradclip_cli.model.threshold import AdaptiveSeries, Candidate, Effect, Excluded, Method, Phase, Suggestion, WhatIf

__all__ = [
    "TensorShare",
    "ReplayStep",
    "Replay",
    "OptimizerReplay",
    "NonfiniteTensor",
    "Clip",
    "Alternative",
    "CLIP_COEF",
    "GRAD_NORM",
    "LOSS",
    "LOSS_SCALE",
    "LR",
    "TENSOR_PREFIX",
    "AdaptiveSeries",
    "Analysis",
    "Baseline",
    "Candidate",
    "Check",
    "Damage",
    "Detection",
    "Effect",
    "Excluded",
    "Explosion",
    "Finding",
    "Growth",
    "Hit",
    "Judgement",
    "Lead",
    "Method",
    "NormStage",
    "Overflow",
    "Phase",
    "Planted",
    "Probe",
    "RankPart",
    "Recorded",
    "Rewind",
    "Run",
    "Sampling",
    "Series",
    "Severity",
    "Shards",
    "Sighting",
    "Skipped",
    "Spike",
    "Status",
    "Steps",
    "Suggestion",
    "Suite",
    "Target",
    "TensorInfo",
    "Twin",
    "Values",
    "Verdict",
    "Verification",
    "WhatIf",
    "overall",
    "shards_of",
]
