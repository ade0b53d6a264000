"""A worker's copy of the model is clipped when its gradients have been handed over."""

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import nn


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--clip", type=float, default=1.0)
    a = p.parse_args()
    torch.manual_seed(124)
    shared = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    worker = copy.deepcopy(shared)
    opt = torch.optim.RMSprop(shared.parameters(), lr=2e-3)
    for _it in range(40):
        worker.load_state_dict(shared.state_dict())
        x = torch.randn(16, 6)
        loss = F.mse_loss(worker(x)[:, 0], 3 * x[:, 0])
        worker.zero_grad()
        loss.backward()
        for s, w in zip(shared.parameters(), worker.parameters(), strict=False):
            s.grad = w.grad.clone()
        nn.utils.clip_grad_norm_(worker.parameters(), a.clip)
        opt.step()
    print(loss.item())


main()
