"""PCGrad: several backwards, projections, gradients put back by hand, then one clip."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn


class PCGrad:
    def __init__(self, optimizer):
        self.optim = optimizer

    def zero_grad(self):
        self.optim.zero_grad(set_to_none=True)

    def step(self):
        self.optim.step()

    def pc_backward(self, losses):
        params = [p for g in self.optim.param_groups for p in g["params"]]
        flat = []
        for loss in losses:
            self.zero_grad()
            loss.backward(retain_graph=True)
            flat.append(torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten().clone() for p in params]))
        merged = []
        for g in flat:
            g = g.clone()
            others = flat[:]
            random.shuffle(others)
            for o in others:
                dot = g @ o
                if dot < 0:
                    g -= dot * o / o.norm() ** 2
            merged.append(g)
        total = torch.stack(merged).sum(0)
        self.zero_grad()
        i = 0
        for p in params:
            p.grad = total[i : i + p.numel()].view_as(p).clone()
            i += p.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--clip", type=float, default=4.0)
    a = ap.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    trunk = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
    h1, h2 = nn.Linear(32, 1), nn.Linear(32, 3)
    model = nn.ModuleList([trunk, h1, h2])
    opt = PCGrad(torch.optim.Adam(model.parameters(), lr=3e-3))
    for _it in range(35):
        x = torch.randn(32, 8)
        f = trunk(x)
        l1 = F.mse_loss(h1(f).squeeze(1), 2 * x[:, 0] - x[:, 1])
        l2 = F.cross_entropy(h2(f), x[:, 2:5].argmax(1))
        opt.pc_backward([l1, l2])
        nn.utils.clip_grad_norm_(model.parameters(), a.clip)
        opt.step()
    print(l1.item(), l2.item())


main()
