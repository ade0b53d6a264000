"""The head's gradients are multiplied by ten when they have been clipped."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--head-mult", type=float, default=10.0)
    p.add_argument("--clip", type=float, default=1.0)
    a = p.parse_args()
    torch.manual_seed(112)
    body, head = nn.Sequential(nn.Linear(8, 32), nn.ReLU()), nn.Linear(32, 3)
    model = nn.Sequential(body, head)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _it in range(40):
        x = torch.randn(32, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), a.clip)
        for q in head.parameters():
            q.grad.data = q.grad.data * a.head_mult
        opt.step()
    print(loss.item())


main()
