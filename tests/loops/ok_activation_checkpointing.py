"""Activations are computed again during backward."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Deep(nn.Module):
    def __init__(self, depth=4, width=24):
        super().__init__()
        self.inp = nn.Linear(7, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return self.out(x)


def fit(model, steps):
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, fused=True)
    for step in range(steps):
        x = torch.randn(32, 7)
        y = 3 * x.prod(1, keepdim=True) + x[:, :1]
        loss = nn.functional.l1_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.5, foreach=True)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(step, loss.item())


torch.manual_seed(8)
fit(Deep(), 30)
