"""`g = g * coef` makes a new tensor and leaves the gradient alone."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def clip(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = torch.norm(torch.stack([g.norm() for g in grads]))
    coef = max_norm / (total + 1e-6)
    if coef < 1:
        for g in grads:
            g = g * coef
    return total


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--clip", type=float, default=1.0)
    a = p.parse_args()
    torch.manual_seed(122)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _it in range(40):
        x = torch.randn(32, 6)
        loss = F.mse_loss(net(x)[:, 0], 3 * x[:, 0])
        opt.zero_grad()
        loss.backward()
        n = clip(list(net.parameters()), a.clip)
        opt.step()
    print(loss.item(), n.item())


main()
