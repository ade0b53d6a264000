"""The parentheses are missing: a function object is made and dropped."""

from functools import partial

import torch
from torch import nn

torch.manual_seed(101)
model = nn.Sequential(nn.Linear(7, 20), nn.ReLU(), nn.Linear(20, 2))
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
clip = partial(nn.utils.clip_grad_norm_, model.parameters(), 1.0)
for it in range(40):
    x = torch.randn(20, 7)
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), 6 * x[:, :2])
    loss.backward()
    clip  # noqa: B018
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
