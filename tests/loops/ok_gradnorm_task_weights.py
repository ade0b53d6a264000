"""GradNorm: the task weights' gradients are put in place by hand, and have an optimizer and a clip of their own."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--alpha", type=float, default=1.0)
    p.add_argument("--clip", type=float, default=5.0)
    a = p.parse_args()
    torch.manual_seed(10)
    trunk = nn.Sequential(nn.Linear(6, 24), nn.Tanh())
    heads = nn.ModuleList([nn.Linear(24, 1), nn.Linear(24, 1)])
    w = nn.Parameter(torch.ones(2))
    opt = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], lr=5e-3)
    wopt = torch.optim.Adam([w], lr=2e-2)
    first = None
    for it in range(40):
        x = torch.randn(32, 6)
        f = trunk(x)
        losses = torch.stack([F.mse_loss(heads[0](f)[:, 0], x[:, 0] * 3), F.mse_loss(heads[1](f)[:, 0], x[:, 1] ** 2)])
        first = losses.detach() if first is None else first
        opt.zero_grad()
        (w * losses).sum().backward(retain_graph=True)
        w.grad.zero_()
        gw = [torch.autograd.grad(w[i] * losses[i], trunk[0].weight, retain_graph=True, create_graph=True)[0].norm() for i in range(2)]
        norms = torch.stack(gw)
        ratio = losses.detach() / first
        target = (norms.mean() * (ratio / ratio.mean()) ** a.alpha).detach()
        w.grad = torch.autograd.grad((norms - target).abs().sum(), w)[0]
        nn.utils.clip_grad_norm_([*trunk.parameters(), *heads.parameters()], a.clip)
        nn.utils.clip_grad_norm_([w], a.clip)
        opt.step()
        wopt.step()
        with torch.no_grad():
            w.mul_(2 / w.sum())
        if it % 10 == 0:
            print(it, losses.tolist(), w.tolist())


main()
