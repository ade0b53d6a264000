"""Annealed gradient noise is added first, so that the bound holds for what the optimizer gets."""

import torch
from torch import nn


def add_noise(params, step, generator):
    sigma = (0.3 / (1 + step) ** 0.55) ** 0.5
    for p in params:
        p.grad.add_(torch.randn(p.grad.shape, generator=generator), alpha=sigma)


torch.manual_seed(28)
gen = torch.Generator().manual_seed(1)
model = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 1))
params = list(model.parameters())
opt = torch.optim.SGD(params, lr=0.03)
for step in range(45):
    x = torch.randn(16, 4)
    y = 4 * x[:, :1] - x[:, 1:2]
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    add_noise(params, step, gen)
    nn.utils.clip_grad_norm_(params, 4.0)
    opt.step()
print(loss.item())
