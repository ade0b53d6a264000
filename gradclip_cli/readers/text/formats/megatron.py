"""Megatron-LM and what descends from it: Megatron-DeepSpeed, GPT-NeoX, BigScience."""

from __future__ import annotations

from gradclip_cli.model.run import GRAD_NORM, LOSS, NormStage, Sampling
from gradclip_cli.readers.text.format import Format, pattern

FORMATS = (
    Format(
        name="megatron",
        summary="Megatron-LM, Megatron-DeepSpeed, GPT-NeoX: ` iteration 3/ 1000 | elapsed ... | lm loss: 2.3E+00 | grad norm: 0.5 |`",
        line=pattern(r"\biteration\s++\d++/\s*+\d++ \| (?:consumed|elapsed) "),
        step=("iteration",),
        keys=("number of skipped iterations",),
        skipped="number of skipped iterations",
        # training_log counts a skipped step here where the loss itself, and not only a gradient, was nan or inf.
        nonfinite="nan_iterations",
        extra=pattern(r"\bnumber of nan iterations:\s*+(?P<nan_iterations>\d++)"),
        # training_log prints a loss only where it is above 0, which nan is not.
        omits_nan=True,
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="Megatron prints what its clip_grad_norm returns, the norm before clipping",
        # training_log: losses are summed and divided by the steps since the last line; the norm is the last step's.
        sampling={LOSS: Sampling.WINDOW_MEAN, GRAD_NORM: Sampling.INSTANT},
    ),
)
