"""Reinforcement learning: verl, and the tables of OpenAI's logger (baselines, guided-diffusion, Stable-Baselines3)."""

from __future__ import annotations

from gradclip_cli.model.run import GRAD_NORM, LOSS, NormStage, Sampling
from gradclip_cli.readers.text.format import Format, pattern

_MEANS = {LOSS: Sampling.WINDOW_MEAN, GRAD_NORM: Sampling.WINDOW_MEAN}

FORMATS = (
    Format(
        name="verl",
        summary="verl: `(TaskRunner pid=1) step:3 - actor/pg_loss:0.1 - actor/grad_norm:3.4 - ... - training/global_step:3`",
        line=pattern(r"\bstep:\d++ - \w++/[^ ]{1,80}:"),
        step=("step",),
        norm_stage=NormStage.PRE_CLIP,
        stage_reason="verl logs what clip_grad_norm_ returns, the norm before clipping",
        # A line is an iteration of several updates.
        sampling=_MEANS,
    ),
    Format(
        name="openai-logger",
        summary="OpenAI logger's box tables: `| grad_norm | 0.5 |` between rules (guided-diffusion, baselines)",
        line=pattern(r"^\|\s*+[^|]{1,60}\|\s*+[^|\s]{1,40}+\s*+\|\s*+$"),
        step=("step", "total_timesteps", "timesteps_so_far", "n_updates"),
        keys=("total_timesteps", "timesteps_so_far", "n_updates"),
        # logkv_mean
        sampling=_MEANS,
    ),
)
