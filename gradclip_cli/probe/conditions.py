"""Under which conditions a probe trains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the command line can choose.

    Attributes:
        steps: Optimizer updates.
        max_norm: The clipping bound; inf only measures.
        lr, optimizer: None for those that suit the model, or that the user's own function made.
        dtype: "fp32", or "bf16" or "fp16" by autocast, fp16 with a loss scaler.
        accumulate: Micro-batches of an update.
        parallel: "ddp" or "fsdp2", where there are several ranks.
        rank: Of this process.
    """

    device: torch.device
    steps: int = 200
    max_norm: float = math.inf
    lr: float | None = None
    optimizer: str | None = None
    dtype: str = "fp32"
    accumulate: int = 1
    compile: bool = False
    seed: int = 0
    parallel: str = ""
    rank: int = 0
