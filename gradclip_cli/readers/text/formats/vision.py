"""Vision trainers: detectron2, OpenMMLab of both ages, PySlowFast, Swin, the MetricLogger of DETR, OpenCLIP, Ultralytics, kohya."""

from __future__ import annotations

from gradclip_cli.model.run import GRAD_NORM, LOSS, LR, NormStage, Sampling
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
    Format(
        name="metric-logger",
        summary="DETR, DeiT, MAE, DINO, LAVIS: `Epoch: [0]  [ 20/1251]  eta: 0:12:00  lr: 1e-06  loss: 6.9 (6.95)  time: 0.3  data: 0.1`",
        line=pattern(r"\[\s*+\d++/\d++\]\s++eta: [^\[\]]{0,2000}?\bdata: \d"),
        notes=("the MetricLogger prints medians over the last 20 steps: a spike of a step or two leaves no trace",),
    ),
    Format(
        name="open-clip",
        summary="OpenCLIP: `Train Epoch: 0 [ 12800/1000000 (1%)] Data (t): 0.1 Batch (t): 0.3, ... Loss: 2.3 (2.4)`",
        line=pattern(r"\bTrain Epoch: \d++ \[\s*+\d++/\d++ \(\d++%\)\] .{0,120}?\bData \(t\): "),
        step=("iter",),
        # "Using non avg meter values": the batch at hand, once every so many.
        sampling={LOSS: Sampling.INSTANT},
        notes=("OpenCLIP counts samples, not updates",),
    ),
    Format(
        name="ultralytics",
        summary="Ultralytics YOLO: a header `Epoch  GPU_mem  box_loss ...`, then `1/100  2.3G  1.2 ...`, redrawn while a mean grows",
        line=pattern(r"^\s*+\d++/\d++\s++[\d.]++[MG]\s++[\d.]"),
        step=("Epoch",),
        running_mean=True,
        sampling={LOSS: Sampling.WINDOW_MEAN},
        notes=("Ultralytics prints the mean over the epoch so far: one point an epoch",),
    ),
    Format(
        name="kohya",
        summary="kohya's sd-scripts: `steps:  10%|#  | 12/100 [00:10<01:00, 1.2it/s, avr_loss=0.12]`",
        line=pattern(r"\bsteps: [^\[\]]{0,240}+\[[^\[\]]{0,120}?\bavr_loss="),
        roles={LOSS: "avr_loss"},
        sampling={LOSS: Sampling.WINDOW_MEAN},
        notes=("sd-scripts print the mean loss of an epoch's length of steps: a spike in it is lower and longer than it was",),
    ),
)
