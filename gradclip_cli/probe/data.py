"""The batches of a preset: windows of the text, padded."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradclip_cli.probe.batch import IGNORED, Batch
from gradclip_cli.probe.sizes import Preset
from gradclip_cli.probe.text import made_text

_PADDING = 0
# Share of a row that is text; the rest is padding, as where documents are short.
_SHORTEST, _LONGEST = 0.25, 0.6


def preset_batches(preset: Preset, seed: int) -> Iterator[Batch]:
    """Endless batches: `input_ids`, and `labels` that are the same where they are to be predicted."""
    text = torch.frombuffer(bytearray(made_text()), dtype=torch.uint8).long()
    chance = torch.Generator().manual_seed(seed)
    places = torch.arange(preset.context)
    shortest, longest = int(_SHORTEST * preset.context), int(_LONGEST * preset.context)
    while True:
        starts = torch.randint(len(text) - preset.context, (preset.batch, 1), generator=chance)
        lengths = torch.randint(shortest, longest + 1, (preset.batch, 1), generator=chance)
        padding = places >= lengths
        ids = text[starts + places].masked_fill(padding, _PADDING)
        yield {"input_ids": ids, "labels": ids.masked_fill(padding, IGNORED)}
