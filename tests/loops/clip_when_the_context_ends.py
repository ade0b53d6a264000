"""A context manager clips when it is left, and the step is inside of it."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Guard:
    def __init__(self, params, limit):
        self.params, self.limit, self.norms = list(params), limit, []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.norms.append(float(nn.utils.clip_grad_norm_(self.params, self.limit)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--clip", type=float, default=1.5)
    a = p.parse_args()
    torch.manual_seed(104)
    net = nn.GRU(3, 16, batch_first=True)
    out = nn.Linear(16, 1)
    params = [*net.parameters(), *out.parameters()]
    opt = torch.optim.SGD(params, lr=0.02, momentum=0.9)
    guard = Guard(params, a.clip)
    for _it in range(35):
        x = torch.randn(16, 6, 3)
        opt.zero_grad()
        with guard:
            loss = F.mse_loss(out(net(x)[0][:, -1])[:, 0], x.sum((1, 2)))
            loss.backward()
            opt.step()
    print(loss.item(), max(guard.norms))


main()
