"""Hugging Face Trainer and those built on it: TRL, LLaMA-Factory, axolotl, ms-swift."""

from __future__ import annotations

from gradclip_cli.model.run import GRAD_NORM, LOSS, LR, NormStage, Sampling
from gradclip_cli.readers.text.format import Format, pattern

FORMATS = (
    Format(
        name="huggingface-console",
        summary="the Trainer's printed dicts: `{'loss': 2.3, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}`",
        line=pattern(r"^(?=.*'epoch': '?\d).*?'(?:(?:train_|eval_)?loss|grad_norm)': '?[-+\dnNiI]"),
        not_training=pattern(r"'train_runtime': "),
        step=("global_step/max_steps", "step", "global_step"),
        keys=("global_step/max_steps",),
        roles={LOSS: "loss", GRAD_NORM: "grad_norm", LR: "learning_rate"},
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="the Trainer logs what clip_grad_norm_ returns, the norm before clipping",
        # Trainer._maybe_log_save_evaluate: the loss is averaged over the steps since the last line, the norm is the last step's.
        sampling={LOSS: Sampling.WINDOW_MEAN, GRAD_NORM: Sampling.INSTANT},
    ),
)
