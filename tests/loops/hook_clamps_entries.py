"""Tensor hooks clamp each entry while the gradient arrives."""

import torch
from torch import nn

GRAD_NORM = 0.2
torch.manual_seed(115)
model = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 1))
for p in model.parameters():
    p.register_hook(lambda g: torch.clamp(g, -GRAD_NORM, GRAD_NORM))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for it in range(40):
    x = torch.randn(16, 6)
    loss = nn.functional.mse_loss(model(x), 7 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
