"""First the largest entry is bounded by one factor, then the 2-norm by another."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(119)
model = nn.Sequential(nn.Linear(5, 20), nn.SiLU(), nn.Linear(20, 1))
opt = torch.optim.Adagrad(model.parameters(), lr=0.02)
for it in range(40):
    x = torch.randn(20, 5)
    loss = nn.functional.mse_loss(model(x), 8 * x[:, :1] + 1)
    opt.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0, norm_type=float("inf"))
    clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
