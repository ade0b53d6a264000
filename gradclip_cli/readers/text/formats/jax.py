"""JAX trainers: MaxText, Levanter, what logs through clu (Flax, T5X, Scenic), big_vision."""

from __future__ import annotations

from gradclip_cli.model.run import GRAD_NORM, LOSS, NormStage, Sampling
from gradclip_cli.readers.text.format import Format, pattern

_EACH_STEP = {LOSS: Sampling.INSTANT, GRAD_NORM: Sampling.INSTANT}

FORMATS = (
    Format(
        name="maxtext",
        summary="MaxText: `completed step: 10, seconds: 1.2, TFLOP/s/device: 120, ..., loss: 2.3`",
        line=pattern(r"\bcompleted step: \d++, seconds: "),
        step=("step",),
        sampling={LOSS: Sampling.INSTANT},
    ),
    Format(
        name="levanter",
        summary="Levanter: `Progress on:train 12.0it/100it rate:1.1it/s remaining:01:32 elapsed:00:03 postfix:loss=2.3`",
        line=pattern(r"\bProgress on:.{0,60}?it/\S++ rate:.{0,120}? postfix:\w++="),
        extra=pattern(r"\bProgress on:(?:\w++ )?(?P<iter>[\d.]++[kM]?)(?=it/)"),
        step=("iter",),
        sampling={LOSS: Sampling.INSTANT},
    ),
    Format(
        name="clu",
        summary="clu, as in Flax, T5X and Scenic: `logging_writer.py:48] [100] collection=train learning_rate=0.1, loss=2.3`",
        line=pattern(r"\blogging_writer\.py:\d++\] \[\d++\] "),
        not_training=pattern(r"\] (?:collection=(?!train )|\w*eval)"),
        extra=pattern(r"\] \[(?P<step>\d++)\] "),
        step=("step",),
    ),
    Format(
        name="big-vision",
        summary="big_vision: `[100] training_loss = 2.3`, `[100] l2_grads = 0.5`, a line a metric",
        line=pattern(r"\] \[\d++\] (?:training_loss|l2_grads|l2_params|l2_updates|global_schedule) = "),
        extra=pattern(r"\] \[(?P<step>\d++)\] "),
        step=("step",),
        keys=("l2_grads",),
        roles={LOSS: "training_loss", GRAD_NORM: "l2_grads"},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="big_vision logs the norm of the gradients as computed; clipping is a part of its optimizer",
        sampling=_EACH_STEP,
    ),
)
