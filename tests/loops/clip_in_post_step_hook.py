"""The clip is registered as a hook behind the step."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--clip", type=float, default=1.0)
    a = p.parse_args()
    torch.manual_seed(103)
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)

    def bound(optimizer, args, kwargs):
        nn.utils.clip_grad_norm_(net.parameters(), a.clip)

    opt.register_step_post_hook(bound)
    for _it in range(40):
        x = torch.randn(32, 6)
        opt.zero_grad()
        loss = F.mse_loss(net(x)[:, 0], 2 * x[:, 0] + x[:, 1])
        loss.backward()
        opt.step()
    print(loss.item())


main()
