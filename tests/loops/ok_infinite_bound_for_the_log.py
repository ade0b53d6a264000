"""The norm for the log is taken with an infinite bound, then the true bound is applied; the helper's own norm is only printed."""

import torch
from torch import nn

torch.manual_seed(34)
model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1))
opt = torch.optim.AdamW(model.parameters(), lr=5e-3)


def layer_norms(m):
    return {n: p.grad.detach().norm().item() for n, p in m.named_parameters() if p.grad is not None}


for it in range(40):
    x = torch.randn(32, 8)
    y = x[:, :1] * 5 + x[:, 1:2] * x[:, 2:3]
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    before = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    nn.utils.clip_grad_norm_(model.parameters(), 6.0)
    if it % 10 == 0:
        after = sum(v * v for v in layer_norms(model).values()) ** 0.5
        print(f"{it} loss {loss.item():.2f} before {before:.2f} after {after:.2f}")
    opt.step()
