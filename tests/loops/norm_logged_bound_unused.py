"""The norm is logged and the bound printed; nothing connects the two."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def grad_norm(net):
    return sum(p.grad.norm().item() ** 2 for p in net.parameters()) ** 0.5


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max-grad-norm", type=float, default=0.5)
    ap.add_argument("--log-every", type=int, default=10)
    a = ap.parse_args()
    max_norm = a.max_grad_norm
    torch.manual_seed(163)
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    print(f"clipping at {max_norm}")
    for it in range(40):
        x = torch.randn(32, 8)
        opt.zero_grad()
        loss = F.mse_loss(net(x)[:, 0], 2 * x[:, 0])
        loss.backward()
        if it % a.log_every == 0:
            print(it, loss.item(), grad_norm(net))
        opt.step()


main()
