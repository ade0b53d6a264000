"""The list of parameters with a gradient is made before there is any."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--clip", type=float, default=1.0)
    a = p.parse_args()
    torch.manual_seed(120)
    net = nn.Sequential(nn.Linear(7, 24), nn.ReLU(), nn.Linear(24, 3))
    to_clip = [q for q in net.parameters() if q.grad is not None]
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for it in range(40):
        x = torch.randn(32, 7)
        loss = F.cross_entropy(net(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(to_clip, a.clip)
        opt.step()
        if it % 10 == 0:
            print(it, loss.item(), float(norm))


main()
