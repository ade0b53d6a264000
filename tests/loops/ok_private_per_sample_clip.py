"""DP-SGD: every sample's gradient is clipped, summed elsewhere, and put back with noise."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--max-per-sample-grad-norm", type=float, default=1.0)
    p.add_argument("--sigma", type=float, default=0.1)
    p.add_argument("--batch", type=int, default=8)
    a = p.parse_args()
    torch.manual_seed(56)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.2)
    for _it in range(30):
        x = torch.randn(a.batch, 6)
        y = (x[:, 0] > 0).long()
        summed = [torch.zeros_like(q) for q in model.parameters()]
        for i in range(a.batch):
            opt.zero_grad()
            loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), a.max_per_sample_grad_norm)
            for s, q in zip(summed, model.parameters(), strict=False):
                s += q.grad
        for s, q in zip(summed, model.parameters(), strict=False):
            q.grad = (s + a.sigma * a.max_per_sample_grad_norm * torch.randn_like(s)) / a.batch
        opt.step()
    print(loss.item())


main()
