"""Finite half-precision gradients, a norm beyond 65504: the coefficient is zero and the update is lost."""

import torch
from torch import nn

torch.manual_seed(108)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)).half()
opt = torch.optim.SGD(model.parameters(), lr=1e-5)
for it in range(30):
    x = torch.randn(32, 16).half()
    y = (x[:, :8] * 4).float()
    factor = 6e4 if it % 6 == 5 else 50.0
    loss = (model(x).float() - y).square().mean() * factor
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 20.0)
    opt.step()
    if it % 3 == 2:
        print(it, loss.item(), norm.item())
