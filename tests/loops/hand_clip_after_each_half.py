"""The discriminator's real and fake halves are each followed by a clip by hand."""

import argparse

import torch
from torch import nn


def limit_grads(net, m):
    gs = [p.grad for p in net.parameters() if p.grad is not None]
    n = torch.cat([g.flatten() for g in gs]).norm()
    if n > m:
        for g in gs:
            g *= m / n


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--clip", type=float, default=0.6)
    a = p.parse_args()
    torch.manual_seed(110)
    D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    opt = torch.optim.RMSprop(D.parameters(), lr=1e-3)
    bce = nn.BCEWithLogitsLoss()
    for _it in range(35):
        real, fake = torch.randn(32, 2) + 2, torch.randn(32, 2) * 3
        opt.zero_grad()
        lr_ = bce(D(real), torch.ones(32, 1))
        lr_.backward()
        limit_grads(D, a.clip)
        lf = bce(D(fake), torch.zeros(32, 1))
        lf.backward()
        limit_grads(D, a.clip)
        opt.step()
    print(lr_.item(), lf.item())


main()
