"""One call for each child module: each has a norm of its own."""

import torch
from torch import nn

torch.manual_seed(8)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for it in range(40):
    x = torch.randn(32, 8)
    y = 10 * x[:, :1] + 3 * x[:, 1:2] * x[:, 2:3]
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    for layer in model.children():
        if any(p.requires_grad for p in layer.parameters()):
            nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
