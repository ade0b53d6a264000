"""While the learning rate warms up the bound is infinite."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--warmup-steps", type=int, default=10)
    p.add_argument("--clip", type=float, default=3.0)
    a = p.parse_args()
    torch.manual_seed(55)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=a.warmup_steps)
    norms = []
    for step in range(50):
        x = torch.randn(32, 8)
        loss = F.mse_loss(model(x).squeeze(1), 2 * x[:, 0])
        opt.zero_grad()
        loss.backward()
        limit = a.clip if step >= a.warmup_steps else float("inf")
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), limit).item())
        opt.step()
        sched.step()
    print(loss.item(), max(norms))


main()
