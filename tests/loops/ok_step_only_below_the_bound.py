"""Nothing is scaled: a batch whose norm exceeds the bound takes no step."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--max-norm", type=float, default=12.0)
    a = p.parse_args()
    torch.manual_seed(37)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.SGD(net.parameters(), lr=5e-3)
    taken = 0
    for it in range(45):
        x = torch.randn(32, 6)
        y = 3 * x[:, 0] * (50 if it % 15 == 14 else 1)
        loss = F.mse_loss(net(x).squeeze(1), y)
        loss.backward()
        norm = torch.sqrt(sum(q.grad.pow(2).sum() for q in net.parameters()))
        if norm < a.max_norm:
            opt.step()
            taken += 1
        opt.zero_grad()
    print(taken, "of 45 steps taken", loss.item())


main()
