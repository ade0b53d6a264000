"""Robot policies: openpi, LeRobot."""

from __future__ import annotations

from gradclip_cli.model.run import GRAD_NORM, LOSS, LR, NormStage, Sampling
from gradclip_cli.readers.text.format import Format, pattern

_MEANS = {LOSS: Sampling.WINDOW_MEAN, GRAD_NORM: Sampling.WINDOW_MEAN}

FORMATS = (
    Format(
        name="openpi",
        summary="openpi: `Step 100: grad_norm=0.5, loss=0.2, param_norm=1377.9`",
        line=pattern(r"\bStep \d++: (?=.{0,200}?\bparam_norm=)"),
        step=("Step",),
        roles={LOSS: "loss", GRAD_NORM: "grad_norm"},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="openpi logs the norm of the gradients as computed; clipping is a part of its optimizer",
        # The metrics of the steps since the last line are stacked and averaged.
        sampling=_MEANS,
    ),
    Format(
        name="lerobot",
        summary="LeRobot: `step:25K smpl:806K ep:3K epch:63.78 loss:0.031 grdn:4.391 lr:1.0e-05`",
        line=pattern(r"\bstep:\S++ smpl:\S++ ep:\S++ epch:"),
        step=("step",),
        roles={LOSS: "loss", GRAD_NORM: "grdn", LR: "lr"},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="LeRobot logs what clip_grad_norm_ returns, the norm before clipping",
        # Its meters are reset after each line.
        sampling=_MEANS,
    ),
)
