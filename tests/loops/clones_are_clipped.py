"""Copies of the gradients are collected, and the copies are scaled."""

import torch
from torch import nn


def gather(model):
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}


def rescale(grads, bound):
    norm = sum(g.pow(2).sum() for g in grads.values()).sqrt()
    if norm > bound:
        for g in grads.values():
            g.mul_(bound / norm)
    return norm


torch.manual_seed(67)
model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for it in range(40):
    x = torch.randn(20, 4)
    loss = nn.functional.mse_loss(model(x), 6 * x[:, :1] * x[:, 1:2])
    opt.zero_grad()
    loss.backward()
    norm = rescale(gather(model), 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), norm.item())
