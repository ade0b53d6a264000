"""Langevin noise is added after the bound, and is much larger than it."""

import torch
from torch import nn

torch.manual_seed(54)
model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for it in range(40):
    x = torch.randn(16, 5)
    loss = nn.functional.mse_loss(model(x), 3 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    with torch.no_grad():
        for p in model.parameters():
            p.grad += 0.2 * torch.randn_like(p)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
