"""A helper with the name of a global clip bounds each tensor's norm."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def clip_gradients(model, clip):
    norms = []
    for _name, p in model.named_parameters():
        if p.grad is not None:
            param_norm = p.grad.data.norm(2)
            norms.append(param_norm.item())
            clip_coef = clip / (param_norm + 1e-6)
            if clip_coef < 1:
                p.grad.data.mul_(clip_coef)
    return norms


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--clip_grad", type=float, default=0.4)
    a = ap.parse_args()
    torch.manual_seed(126)
    net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _it in range(40):
        x = torch.randn(32, 8)
        loss = F.cross_entropy(net(x), x[:, :4].argmax(1))
        opt.zero_grad()
        loss.backward()
        clip_gradients(net, a.clip_grad)
        opt.step()
    print(loss.item())


main()
