"""The model of a preset: a small GPT over bytes, and its sizes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from gradclip_cli.probe.sizes import LONGEST, NUM_TOKENS, Preset


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        width = preset.width
        self.num_heads = preset.num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.num_heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.tokens = nn.Embedding(NUM_TOKENS, preset.width)
        self.places = nn.Embedding(LONGEST * preset.context, preset.width)
        self.blocks = nn.ModuleList(Block(preset) for _ in range(preset.num_layers))
        self.norm, self.head = nn.LayerNorm(preset.width), nn.Linear(preset.width, NUM_TOKENS, bias=False)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy over the labels that are not ignored.

        Args:
            input_ids: int64, shape (batch, position).
            labels: The same tokens, -100 where one is not to be predicted; the shift by one happens here.
        """
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tokens(input_ids) + self.places(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
