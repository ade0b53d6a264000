"""Speech: ESPnet, icefall, WeNet, Tacotron 2."""

from __future__ import annotations

from gradclip_cli.model.run import GRAD_NORM, LOSS, LOSS_SCALE, LR, NormStage, Sampling
from gradclip_cli.readers.text.format import Format, pattern

FORMATS = (
    Format(
        name="espnet",
        summary="ESPnet2: `1epoch:train:1-100batch: ..., loss=32.1, ..., grad_norm=5.3, clip=100.000`",
        line=pattern(r"\b\d++epoch:train:\d++-\d++batch: "),
        extra=pattern(r"\b(?P<epoch>\d++)epoch:train:\d++-(?P<iter>\d++)batch: "),
        step=("iter",),
        roles={LOSS: "loss", GRAD_NORM: "grad_norm"},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="ESPnet logs what clip_grad_norm_ returns, the norm before clipping",
        sampling={LOSS: Sampling.WINDOW_MEAN, GRAD_NORM: Sampling.WINDOW_MEAN},
    ),
    Format(
        name="icefall",
        summary="icefall: `(0/8) Epoch 1, batch 50, loss[loss=0.3, simple_loss=0.2, over 1000 frames.], tot_loss[loss=0.4, ...], ...`",
        line=pattern(r"\bEpoch \d++, batch \d++, loss\["),
        extra=pattern(r"(?:\((?P<rank>\d++)/\d++\) )?\bEpoch (?P<epoch>\d++), batch (?P<iter>\d++), (?=loss\[)"),
        step=("iter",),
        # The loss of the batch comes first; `tot_loss` is a running mean with decay.
        roles={LOSS: "loss", LR: "lr", LOSS_SCALE: "grad_scale"},
        sampling={LOSS: Sampling.INSTANT},
    ),
    Format(
        name="wenet",
        summary="WeNet: `TRAIN Batch 0/100 loss 12.3 loss_att 12.0 loss_ctc 13.0 lr 0.0001 rank 0`",
        line=pattern(r"\b(?:TRAIN|CV)\b.{0,40}?\bBatch \d++/\d++ loss "),
        not_training=pattern(r"\bCV\b"),
        # Of old versions the batch and how many there are, of newer ones the epoch and the batch.
        step=("Batch",),
        roles={LOSS: "loss", GRAD_NORM: "grad_norm", LR: "lr"},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="WeNet prints what clip_grad_norm_ returns, the norm before clipping",
        sampling={LOSS: Sampling.INSTANT, GRAD_NORM: Sampling.INSTANT},
    ),
    Format(
        name="tacotron2",
        summary="Tacotron 2: `Train loss 10 0.345 Grad Norm 0.512 0.95s/it`, where 10 is the iteration",
        line=pattern(r"^\s*+Train loss \d++ \S++ Grad Norm "),
        extra=pattern(r"^\s*+Train loss (?P<iteration>\d++) (?P<loss>\S++)(?= Grad Norm )"),
        step=("iteration",),
        roles={LOSS: "loss", GRAD_NORM: "Grad Norm"},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="Tacotron 2 prints what clip_grad_norm_ returns, the norm before clipping",
        sampling={LOSS: Sampling.INSTANT, GRAD_NORM: Sampling.INSTANT},
    ),
)
