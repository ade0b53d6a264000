"""get_total_norm, a coefficient by hand, new gradient tensors; the bound is never reached."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import get_total_norm


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--clip", type=float, default=1.2)
    a = ap.parse_args()
    torch.manual_seed(170)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _it in range(40):
        x = torch.randn(32, 8)
        opt.zero_grad()
        F.cross_entropy(net(x), x[:, :3].argmax(1)).backward()
        norm = get_total_norm([p.grad for p in net.parameters()])
        coef = torch.clamp(a.clip / (norm + 1e-6), max=1.0)
        for p in net.parameters():
            p.grad = p.grad * coef
        opt.step()
    print(norm.item())


main()
