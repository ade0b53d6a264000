"""fairseq: `simple` lines of every age, and JSON behind a hydra prefix."""

from __future__ import annotations

from gradclip_cli.model.run import GRAD_NORM, LOSS, LR, NormStage, Sampling
from gradclip_cli.readers.text.format import Format, pattern

FORMATS = (
    Format(
        name="fairseq",
        summary="fairseq: `| epoch 027 | loss 6.3 | ... | num_updates 10198 | gnorm 0.39 |`, or JSON after `[train_inner][INFO] -`",
        line=pattern(r"\b(?:train_|valid_)?num_updates(?:=| |\": \")\d"),
        # `| INFO | train | epoch 001 | loss ...`, `[train][INFO] - epoch 1 | loss ...`, `[train][INFO] - {"train_loss": ...}`
        sums_up=pattern(r"\| train \| (?:epoch \d|\{)|\[train\]\[INFO\]"),
        step=("num_updates", "train_num_updates"),
        roles={LOSS: "loss", GRAD_NORM: "gnorm", LR: "lr"},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="fairseq's gnorm is what its clip_grad_norm_ returns, the norm before clipping",
        # trainer.py logs both as averages that train.py resets after each line.
        sampling={LOSS: Sampling.WINDOW_MEAN, GRAD_NORM: Sampling.WINDOW_MEAN},
    ),
)
