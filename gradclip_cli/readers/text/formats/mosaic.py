"""Trainers that print a heading with the step and a line a metric below it: OLMo, OLMo-core, Composer."""

from __future__ import annotations

from gradclip_cli.model.run import GRAD_NORM, LOSS, NormStage, Sampling
from gradclip_cli.readers.text.format import Format, pattern

_EACH_STEP = {LOSS: Sampling.INSTANT, GRAD_NORM: Sampling.INSTANT}

FORMATS = (
    Format(
        name="olmo",
        summary="OLMo and OLMo-core: `[step=10/1000,epoch=0]`, then `    train/CrossEntropyLoss=2.3`",
        line=pattern(r"^\s++(?:train|optim)/[\w ]{1,60}="),
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="OLMo logs the total norm that its clipping computes, the norm before clipping",
        sampling=_EACH_STEP,
    ),
    Format(
        name="composer",
        summary="Composer: `[batch=10/1000]:`, then ` Train loss/train/total: 2.3`",
        line=pattern(r"^\s++Train \w++/[\w/]{1,80}: "),
        roles={LOSS: "Train loss/train/total", GRAD_NORM: "Train l2_norm/grad/global"},
        norm_stage=NormStage.POST_CLIP,
        stage_reason="Composer's OptimizerMonitor computes the norm at the end of the batch, after clipping",
        sampling=_EACH_STEP,
    ),
)
