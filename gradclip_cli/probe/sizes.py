"""How large the models and batches of the presets are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NUM_TOKENS = 256
"""Bytes."""
LONGEST = 32
"""A model has places for sequences so many times as long as the usual ones, for the fault that sends one."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A model and its batches.

    Attributes:
        context: Tokens in a row.
        batch: Rows in a micro-batch.
        lr: A learning rate that suits AdamW.
    """

    width: int
    num_layers: int
    num_heads: int
    context: int
    batch: int
    lr: float


PRESETS: Mapping[str, Preset] = {
    "tiny": Preset(width=32, num_layers=2, num_heads=2, context=32, batch=32, lr=2e-3),
    "small": Preset(width=128, num_layers=4, num_heads=4, context=64, batch=32, lr=1e-3),
    "medium": Preset(width=1024, num_layers=16, num_heads=16, context=512, batch=16, lr=3e-4),
}
"""Some seconds on a laptop; a minute or two there; some GB on a GPU."""
