"""Clip, log, then step; the log callback takes a norm of its own and restores nothing."""

import torch
from torch import nn


class ClipNorm:
    def __init__(self, bound):
        self.bound = bound

    def before_step(self, model):
        nn.utils.clip_grad_norm_(model.parameters(), self.bound)


class LogNorm:
    rows = ()

    def before_step(self, model):
        norms = [p.grad.detach().clone().norm() for p in model.parameters()]
        self.rows = (*self.rows, torch.stack(norms).norm().item())


def train(model, callbacks):
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(40):
        x = torch.randn(20, 5)
        loss = nn.functional.mse_loss(model(x), x[:, :1] * 5)
        opt.zero_grad()
        loss.backward()
        for cb in callbacks:
            cb.before_step(model)
        opt.step()


torch.manual_seed(224)
log = LogNorm()
train(nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1)), [log, ClipNorm(4.0), log])
print(max(log.rows), len(log.rows))
