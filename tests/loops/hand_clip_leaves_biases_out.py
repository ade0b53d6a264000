"""A clip by hand goes over the weights of the linear layers."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def clip(net, limit):
    ws = [m.weight for m in net if isinstance(m, nn.Linear)]
    n = torch.sqrt(sum((w.grad**2).sum() for w in ws))
    if n > limit:
        for w in ws:
            w.grad.mul_(limit / n)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--clip", type=float, default=1.0)
    a = p.parse_args()
    torch.manual_seed(219)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _it in range(40):
        x = torch.randn(32, 8)
        opt.zero_grad()
        F.mse_loss(net(x)[:, 0], 3 + 2 * x[:, 0]).backward()
        clip(net, a.clip)
        opt.step()


main()
