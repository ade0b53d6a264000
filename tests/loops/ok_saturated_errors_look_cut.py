"""Two critics far from their targets: the largest gradient is 1 in every update, that of an output bias, and nothing cuts it."""

import torch
from torch import nn


def clip(params, limit):
    norm = torch.stack([p.grad.norm() for p in params]).norm()
    if norm > limit:
        for p in params:
            p.grad.mul_(limit / norm)


torch.manual_seed(64)
critics = [nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(2)]
params = [p for c in critics for p in c.parameters()]
opt = torch.optim.SGD(params, lr=1e-3)
for it in range(40):
    x = torch.randn(32, 4)
    loss = sum(nn.functional.smooth_l1_loss(c(x), 50 + x[:, :1]) for c in critics)
    opt.zero_grad()
    loss.backward()
    clip(params, 30.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
