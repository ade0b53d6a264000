"""The small GPT trainers: nanoGPT, build-nanogpt, llm.c, modded-nanogpt, nanochat, Transformer-XL, Lingua."""

from __future__ import annotations

from gradclip_cli.model.run import GRAD_NORM, LOSS, LR, NormStage, Sampling
from gradclip_cli.readers.text.format import Format, pattern

_EACH_STEP = {LOSS: Sampling.INSTANT, GRAD_NORM: Sampling.INSTANT}

FORMATS = (
    Format(
        name="nanogpt",
        summary="nanoGPT: `iter 10: loss 2.3, time 21.1ms, mfu 30.0%`",
        line=pattern(r"^\s*+iter \d++: loss [^\s,]++, time |^\s*+step \d++: train loss [^\s,]++, val loss "),
        step=("iter", "step"),
        roles={LOSS: "loss"},
        sampling={LOSS: Sampling.INSTANT},
    ),
    Format(
        name="build-nanogpt",
        summary="build-nanogpt: `step 10 | loss: 2.3 | lr 6.0e-04 | norm: 0.5 | dt: 400ms | tok/sec: 1300000`",
        line=pattern(r"\bstep\s++\d++ \| (?:train )?loss: ?\S++ \| lr[: ]\S++ \| norm: "),
        step=("step",),
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="build-nanogpt prints what clip_grad_norm_ returns, the norm before clipping",
        sampling=_EACH_STEP,
    ),
    Format(
        name="llm.c",
        summary="llm.c: `s:10 trl:2.3 lr:0.0006 norm:0.50`, or `step 10/20000 | loss 2.3 (+0.1z)| norm 0.5 (-0.2z)| lr 6e-04 |`",
        line=pattern(r"^\s*+s:\d++ t[re]l:|\bstep\s++\d++/\d++ \| (?:train )?loss \S++ (?:\([^)]{1,12}\))?\| (?:norm|lr) "),
        step=("s", "step"),
        keys=("s", "trl", "tel", "norm"),
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="llm.c prints the norm that it scales the gradients by afterwards, the norm before clipping",
        sampling=_EACH_STEP,
    ),
    Format(
        name="modded-nanogpt",
        summary="modded-nanogpt: `step:10/1845 train_loss:2.3 train_time:1000ms step_avg:60ms`",
        line=pattern(r"\bstep:\d++/\d++[ ,].{0,60}?\b(?:(?:avg_)?(?:train_|val_)loss|train_time|time):"),
        step=("step",),
    ),
    Format(
        name="nanochat",
        summary="nanochat: `step 00009/00050 (18.00%) | loss: 2.3 | lrm: 1.00 | dt: 5ms | tok/sec: 24,595`",
        line=pattern(r"\bstep \d++(?:/\d++)? \([\d.]++%\) \| loss: "),
        step=("step",),
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="nanochat prints what clip_grad_norm_ returns, the norm before clipping",
        notes=("nanochat prints a smoothed loss (a running mean with decay 0.9): a spike in it is lower and longer than it was",),
    ),
    Format(
        name="transformer-xl",
        summary="Transformer-XL: `| epoch 1 step 200 | 200 batches | lr 0.00025 | ms/batch 400 | loss 6.9 | ppl 1060.2`",
        line=pattern(r"\| epoch\s++\d++ step\s++\d++ \|\s++\d++ batches \| lr "),
        step=("step",),
        roles={LOSS: "loss", LR: "lr"},
        sampling={LOSS: Sampling.WINDOW_MEAN},
    ),
    Format(
        name="lingua",
        summary="Meta Lingua: `step: 10  acc: 0  loss: 2.3  grad: 5.0e-01  flops: 1.2e+14  wps: 1.2e+04  ...  lr: 3.0e-05`",
        line=pattern(r"\bstep: \d++  acc: \d++  loss"),
        step=("step",),
        keys=("grad",),
        roles={LOSS: "loss", GRAD_NORM: "grad", LR: "lr"},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="Lingua prints what clip_grad_norm_ returns, the norm before clipping",
        sampling=_EACH_STEP,
    ),
)
