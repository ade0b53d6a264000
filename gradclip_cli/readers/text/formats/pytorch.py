"""PyTorch's own trainers and examples, NeMo and Lightning."""

from __future__ import annotations

from gradclip_cli.model.run import GRAD_NORM, LOSS, NormStage, Sampling
from gradclip_cli.readers.text.format import Format, pattern

# The bar is made of box-drawing characters.
_RICH = pattern(r"\bEpoch (?P<epoch>\d++)/\S++ [ \xe2\x94\x95\x81\xb8\xba]++(?P<iter>\d++)/(?P<total>\d++)(?= \d++:\d\d:\d\d )")

_EACH_STEP = {LOSS: Sampling.INSTANT, GRAD_NORM: Sampling.INSTANT}

FORMATS = (
    Format(
        name="torchtitan",
        summary="torchtitan: `step: 10  loss: 2.3  grad_norm: 0.5  memory: 1.18GiB(1.24%)  tps: 1,234`",
        line=pattern(r"\bstep: \s*+\d++\s++loss: \s*+\S++\s++(?:grad_norm: \s*+\S++\s++)?(?:memory|tps|wps): "),
        step=("step",),
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="torchtitan logs what its clip_grad_norm_ returns, the norm before clipping",
        sampling=_EACH_STEP,
    ),
    Format(
        name="torchtune",
        summary="torchtune: `Step 10 | loss:2.3 lr:2e-05 ... grad_norm:0.5`, or its bar `1|10|Loss: 2.3`",
        line=pattern(r"\bStep \d++ \| \w++:\S++ (?:\w++:\S|$)|(?:^|\s)\d++\|\d++\|Loss: "),
        step=("Step", "step"),
        extra=pattern(r"(?:^|\s)(?P<epoch>\d++)\|(?P<step>\d++)\|(?=Loss: )"),
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="torchtune logs what clip_grad_norm_ returns, the norm before clipping",
        sampling=_EACH_STEP,
    ),
    Format(
        name="nemo",
        summary="NeMo: `Training epoch 0, iteration 11/399 | ... | global_step: 11 | reduced_train_loss: 7.1 | ...`, or its bar",
        line=pattern(r"\breduced_train_loss[=:]"),
        step=("global_step",),
        roles={LOSS: "reduced_train_loss"},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="NeMo logs what Megatron's optimizer returns, the norm before clipping",
        sampling=_EACH_STEP,
    ),
    Format(
        name="lightning-rich",
        summary="Lightning's rich bar: `Epoch 0/9 ━━━━━ 12/100 0:00:10 • 0:01:00 8.1it/s v_num: 0 train_loss: 2.3`",
        line=_RICH,
        extra=_RICH,
        running_mean=True,
        sampling={LOSS: Sampling.INSTANT},
    ),
    Format(
        name="lightning-bar",
        summary="Lightning's progress bar: `Epoch 0:  7%|...| 7/100 [02:43<36:06, 0.04it/s, v_num=4, train_loss_step=2.3]`",
        line=pattern(r"\bEpoch \d++:.{0,240}?\d++/\d++ \[[^\]]{0,60}\b(?:v_num|loss|train\w{0,30})="),
        sampling={LOSS: Sampling.INSTANT},
    ),
    Format(
        name="pytorch-examples",
        summary="the ImageNet example and its kin: `Epoch: [0][ 10/5005]  Time ...  Loss 7.1e+00 (7.0e+00)`",
        line=pattern(r"\bEpoch: ?\[\d++\]\s*+\[\s*+\d++/\d++\](?!\s*+eta: )"),
        sampling=_EACH_STEP,
    ),
    Format(
        name="timm",
        summary="timm's train.py: `Train: 0 [  50/1251 (  4%)]  Loss: 6.9 (6.92)  LR: 1.0e-05`",
        line=pattern(r"\bTrain: \d++ \[\s*+\d++/\d++ \(\s*+\d++%\)\]"),
        sampling={LOSS: Sampling.INSTANT},
    ),
    Format(
        name="keras",
        summary="Keras: `100/100 [=====] - 3s 26ms/step - loss: 0.7`, one value an epoch",
        # The bar is made of `=` or, in newer versions, of a box-drawing line.
        line=pattern(r"^\s*+\d++/\d++ (?:\[[=>.]{5,}+\]|\xe2\x94\x81|- \d++m?s).{0,400}? - (?:\w++: \S++ - )*+loss: "),
        running_mean=True,
        sampling={LOSS: Sampling.WINDOW_MEAN},
    ),
)
