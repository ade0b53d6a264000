"""A second backward, for a smoothness term, adds to gradients that were clipped already."""

import torch
from torch import nn

torch.manual_seed(4)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
grid = torch.linspace(-1, 1, 30).unsqueeze(1)


def roughness():
    f = model(grid)
    return (f[2:] - 2 * f[1:-1] + f[:-2]).pow(2).sum() * 400 + 3 * f.pow(2).mean()


for it in range(50):
    x = torch.rand(20, 1) * 2 - 1
    y = 4 * torch.sign(x)
    opt.zero_grad()
    fit = (model(x) - y).pow(2).mean()
    fit.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    roughness().backward()
    opt.step()
    if it % 10 == 0:
        print(it, fit.item(), norm.item())
