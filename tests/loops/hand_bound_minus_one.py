"""A bound of -1, meant as "off", in a clip of the loop's own: every gradient is turned round."""

import argparse

import torch
from torch import nn


def limit_(model, limit):
    grads = [p.grad for p in model.parameters()]
    size = torch.cat([g.flatten() for g in grads]).norm().item()
    ratio = min(1.0, limit / (size + 1e-6))
    for g in grads:
        g *= ratio


parser = argparse.ArgumentParser()
parser.add_argument("--limit", type=float, default=-1.0)
limit = parser.parse_args().limit
torch.manual_seed(305)
model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1))
optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-3)
for _ in range(32):
    x = torch.randn(30, 6)
    loss = nn.functional.smooth_l1_loss(model(x), x[:, :1] * 2)
    optimizer.zero_grad()
    loss.backward()
    limit_(model, limit)
    optimizer.step()
print(loss.item())
