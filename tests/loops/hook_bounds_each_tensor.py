"""A hook on each parameter scales its gradient to a norm of its own while it arrives."""

import torch
from torch import nn


def bounded(limit):
    def hook(grad):
        return grad * (limit / (grad.norm() + 1e-6)).clamp(max=1.0)

    return hook


torch.manual_seed(71)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
for p in model.parameters():
    p.register_hook(bounded(1.0))
opt = torch.optim.SGD(model.parameters(), lr=0.02)
for it in range(40):
    x = torch.randn(20, 6)
    loss = nn.functional.mse_loss(model(x), 9 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
