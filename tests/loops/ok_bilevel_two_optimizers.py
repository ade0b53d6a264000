"""DARTS: each of two optimizers uses a part of what the backward gave, and clips just that."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class MixedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.ops = nn.ModuleList([nn.Linear(8, 16) for _ in range(3)])
        self.out = nn.Linear(16, 2)
        self.arch = nn.Parameter(1e-3 * torch.randn(3))

    def weights(self):
        return [*self.ops.parameters(), *self.out.parameters()]

    def forward(self, x):
        w = F.softmax(self.arch, 0)
        acts = (torch.tanh, F.relu, torch.sin)
        return self.out(sum(wi * f(op(x)) for wi, f, op in zip(w, acts, self.ops, strict=False)))


def batch():
    x = torch.randn(32, 8)
    return x, (torch.sin(2 * x[:, 0]) + x[:, 1] > 0).long()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--grad_clip", type=float, default=0.5)
    p.add_argument("--arch_clip", type=float, default=0.05)
    a = p.parse_args()
    torch.manual_seed(51)
    model = MixedNet()
    w_opt = torch.optim.SGD(model.weights(), lr=0.1, momentum=0.9)
    a_opt = torch.optim.Adam([model.arch], lr=1e-2, betas=(0.5, 0.999))
    for _it in range(25):
        x, y = batch()
        a_opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_([model.arch], a.arch_clip)
        a_opt.step()
        x, y = batch()
        w_opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.weights(), a.grad_clip)
        w_opt.step()
    print(loss.item(), F.softmax(model.arch, 0).tolist())


main()
