"""A clip by hand on plain numbers that cuts every update."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class GradClipper:
    def __init__(self, cfg):
        self.cfg = cfg

    def __call__(self, net):
        sq = 0.0
        for p in net.parameters():
            sq += float((p.grad**2).sum())
        norm = sq**0.5
        ratio = self.cfg["max_norm"] / max(norm, 1e-12)
        if ratio < 1.0:
            for p in net.parameters():
                p.grad *= ratio
        return norm


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-norm", type=float, default=0.02)
    a = ap.parse_args()
    torch.manual_seed(161)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    clipper = GradClipper({"max_norm": a.max_norm})
    for _it in range(45):
        x = torch.randn(32, 8)
        opt.zero_grad()
        F.cross_entropy(net(x), x[:, :3].argmax(1)).backward()
        n = clipper(net)
        opt.step()
    print(n)


main()
