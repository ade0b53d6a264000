"""Vision trainers: detectron2, OpenMMLab of both ages, PySlowFast, Swin and its kin."""

from __future__ import annotations

from gradclip_cli.model import GRAD_NORM, LOSS, LR, NormStage, Sampling
from gradclip_cli.readers.text.format import Format, pattern

_MEANS = {LOSS: Sampling.WINDOW_MEAN, GRAD_NORM: Sampling.WINDOW_MEAN}

FORMATS = (
    Format(
        name="detectron2",
        summary="detectron2: `eta: 1:00:00  iter: 19  total_loss: 2.3  loss_cls: 0.5  ...  lr: 0.001`",
        line=pattern(r"\biter: \d++\s++total_loss: "),
        step=("iter",),
        roles={LOSS: "total_loss", LR: "lr"},
        notes=("detectron2 prints medians over the last 20 steps: a spike of a step or two leaves no trace",),
    ),
    Format(
        name="openmmlab",
        summary="mmdet, mmseg, mmengine: `Epoch(train) [1][ 50/7330]  lr: 1e-05  ...  loss: 2.3  grad_norm: 0.5`",
        line=pattern(
            r"\b(?:Epoch(?:\((?:train|val)\))?\s++\[\d++\]|Iter(?:\(train\))?\s*+)\[\s*+\d++/\d++\]"
            r".{0,400}?\b(?:eta|time|data_time|memory): "
        ),
        keys=("Iter(train)", "Iter"),
        step=("Iter(train)", "Iter", "iter"),
        roles={LOSS: "loss", GRAD_NORM: "grad_norm"},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="OpenMMLab logs what clip_grad_norm_ returns, the norm before clipping",
        # TextLoggerHook averages over its interval, mmengine's LogProcessor over a window.
        sampling=_MEANS,
    ),
    Format(
        name="slowfast",
        summary='PySlowFast: `json_stats: {"_type": "train_iter", "epoch": "1/200", "iter": "10/241", "loss": 2.3, ...}`',
        line=pattern(r"\bjson_stats: \{"),
        not_training=pattern(r"\"_type\": \"(?!train_iter)"),
        step=("iter",),
        roles={LOSS: "loss", GRAD_NORM: "grad_norm", LR: "lr"},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="PySlowFast logs what clip_grad_norm_ returns, the norm before clipping",
        notes=("PySlowFast prints medians over a window: a spike of a step or two leaves no trace in the loss",),
    ),
    Format(
        name="swin",
        summary="Swin Transformer and its kin: `Train: [0/300][50/1251]  eta ...  loss 6.9 (6.9)  grad_norm 1.2 (1.3)`",
        line=pattern(r"\bTrain: \[\d++/\d++\]\[\d++/\d++\]"),
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="Swin prints what clip_grad_norm_ returns, the norm before clipping",
        sampling={LOSS: Sampling.INSTANT, GRAD_NORM: Sampling.INSTANT},
    ),
)
