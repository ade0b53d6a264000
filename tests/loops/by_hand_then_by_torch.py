"""A helper with its own bound, followed by torch's function with another."""

import torch
from torch import nn


def rescale(params, limit):
    norm = torch.cat([p.grad.flatten() for p in params]).norm()
    if norm > limit:
        for p in params:
            p.grad.mul_(limit / norm)


torch.manual_seed(118)
model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 2))
params = list(model.parameters())
opt = torch.optim.SGD(params, lr=0.02)
for it in range(40):
    x = torch.randn(20, 5)
    loss = nn.functional.mse_loss(model(x), 6 * x[:, 1:3])
    opt.zero_grad()
    loss.backward()
    rescale(params, 4.0)
    nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
