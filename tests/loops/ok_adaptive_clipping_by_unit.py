"""Adaptive gradient clipping: each row is bounded by a share of its own weights' norm, on purpose."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def unitwise(x):
    if x.ndim <= 1:
        return x.norm(2)
    return x.norm(2, dim=tuple(range(1, x.ndim)), keepdim=True)


@torch.no_grad()
def adaptive_clip_grad(parameters, clip_factor, eps=1e-3):
    for p in parameters:
        if p.grad is None:
            continue
        limit = unitwise(p).clamp_(min=eps).mul_(clip_factor)
        g = unitwise(p.grad)
        p.grad.copy_(torch.where(g < limit, p.grad, p.grad * (limit / g.clamp(min=1e-6))))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--clip-factor", type=float, default=0.15)
    a = p.parse_args()
    torch.manual_seed(54)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _it in range(40):
        y = torch.randint(0, 3, (32,))
        x = torch.randn(32, 1, 6, 6) + y.view(-1, 1, 1, 1) * 0.5
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        adaptive_clip_grad(model.parameters(), a.clip_factor)
        opt.step()
    print(loss.item())


main()
