"""The scaled gradient replaces the old one."""

import torch
from torch import nn


def limit_gradient(module, limit):
    sq = 0.0
    for p in module.parameters():
        if p.grad is not None:
            sq += p.grad.norm().item() ** 2
    norm = sq**0.5
    c = min(1.0, limit / (norm + 1e-6))
    for p in module.parameters():
        if p.grad is not None:
            p.grad = p.grad * c
    return norm


torch.manual_seed(32)
net = nn.Sequential(nn.Linear(3, 30), nn.ReLU(), nn.Linear(30, 1))
opt = torch.optim.SGD(net.parameters(), lr=5e-3, momentum=0.8)
for i in range(40):
    x = torch.rand(25, 3) * 4
    y = (x[:, :1] * x[:, 1:2]) - x[:, 2:] ** 2
    loss = (net(x) - y).pow(2).mean()
    net.zero_grad()
    loss.backward()
    n = limit_gradient(net, 9.0)
    opt.step()
    if i % 8 == 0:
        print(f"i={i} loss={loss.item():.3f} norm={n:.3f}")
