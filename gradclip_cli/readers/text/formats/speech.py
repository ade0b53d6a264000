"""Speech: ESPnet."""

from __future__ import annotations

from gradclip_cli.model import GRAD_NORM, LOSS, NormStage, Sampling
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
)
