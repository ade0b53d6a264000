"""Adaptive gradient clipping sees gradients that still hold the loss scale."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def unitwise(x):
    return x.norm(2) if x.ndim <= 1 else x.norm(2, dim=tuple(range(1, x.ndim)), keepdim=True)


@torch.no_grad()
def agc(parameters, clip_factor, eps=1e-3):
    for p in parameters:
        limit = unitwise(p).clamp(min=eps) * clip_factor
        norm = unitwise(p.grad)
        p.grad.mul_(torch.clamp(limit / norm.clamp(min=1e-6), max=1.0))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--clip-factor", type=float, default=0.2)
    a = ap.parse_args()
    torch.manual_seed(160)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for _it in range(40):
        x = torch.randn(32, 8)
        opt.zero_grad()
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        scaler.scale(loss).backward()
        agc(model.parameters(), a.clip_factor)
        scaler.step(opt)
        scaler.update()
    print(loss.item())


main()
