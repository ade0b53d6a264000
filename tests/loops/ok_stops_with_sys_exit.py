"""Early stopping leaves through sys.exit(0)."""

import sys

import torch
from torch import nn


def main():
    torch.manual_seed(208)
    model = nn.Linear(6, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=1e-3)
    best, patience = float("inf"), 0
    for it in range(1000):
        x = torch.randn(40, 6)
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > x[:, 1]).long())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.35)
        opt.step()
        best, patience = (loss.item(), 0) if loss.item() < best else (best, patience + 1)
        if it > 30 and patience > 3:
            print("stopped at", it)
            sys.exit(0)


main()
