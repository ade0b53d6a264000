"""ASGD, and decay added to the gradients before the clip."""

import torch
from torch import nn

torch.manual_seed(233)
model = nn.Sequential(nn.Linear(6, 24), nn.Softplus(), nn.Linear(24, 1))
opt = torch.optim.ASGD(model.parameters(), lr=0.02)
for it in range(40):
    x = torch.randn(20, 6)
    loss = nn.functional.mse_loss(model(x), 4 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.grad.add_(p, alpha=0.05)
    nn.utils.clip_grad_norm_(model.parameters(), 4.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
