"""The helper reads the iterator for the norm; the loop that scales finds it empty."""

import torch
from torch import nn


def clip_(parameters, max_norm):
    total = 0.0
    for p in parameters:
        total += p.grad.pow(2).sum().item()
    total = total**0.5
    if total > max_norm:
        for p in parameters:
            p.grad.mul_(max_norm / total)
    return total


torch.manual_seed(68)
model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 1))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for it in range(40):
    x = torch.randn(20, 4)
    loss = nn.functional.mse_loss(model(x), 8 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    total = clip_(model.parameters(), 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), total)
