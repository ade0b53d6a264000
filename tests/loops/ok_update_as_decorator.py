"""A decorator turns a loss function into a full update."""

import functools

import torch
from torch import nn


def updates(optimizer, max_norm):
    def wrap(loss_fn):
        @functools.wraps(loss_fn)
        def run(*args):
            optimizer.zero_grad()
            loss = loss_fn(*args)
            loss.backward()
            params = [p for g in optimizer.param_groups for p in g["params"]]
            nn.utils.clip_grad_norm_(params, max_norm)
            optimizer.step()
            return loss.item()

        return run

    return wrap


torch.manual_seed(223)
model = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 3, 3, padding=1))
opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)


@updates(opt, max_norm=6)
def denoise(clean):
    return ((model(clean + torch.randn_like(clean)) - clean) ** 2).sum((1, 2)).mean()


for it in range(36):
    value = denoise(torch.sin(torch.arange(10.0) + 6 * torch.rand(16, 3, 1)) * 2)
    if it % 9 == 0:
        print(it, value)
