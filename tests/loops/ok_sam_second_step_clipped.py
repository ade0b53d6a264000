"""Sharpness-aware minimisation: the ascent step normalises by itself; the descent gradient is clipped."""

import torch
from torch import nn


class SAM:
    def __init__(self, params, base, rho):
        self.params, self.base, self.rho = list(params), base, rho

    @torch.no_grad()
    def ascend(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm() + 1e-12
        self.moves = [p.grad * (self.rho / norm) for p in self.params]
        for p, e in zip(self.params, self.moves, strict=True):
            p.add_(e)
        self.base.zero_grad()

    @torch.no_grad()
    def descend(self):
        for p, e in zip(self.params, self.moves, strict=True):
            p.sub_(e)
        self.base.step()
        self.base.zero_grad()


torch.manual_seed(26)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
sam = SAM(model.parameters(), torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), rho=0.05)
for it in range(40):
    x = torch.randn(32, 6)
    y = x[:, :1] * x[:, 1:2] * 4
    nn.functional.mse_loss(model(x), y).backward()
    sam.ascend()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 4.0)
    sam.descend()
    if it % 10 == 0:
        print(it, loss.item())
