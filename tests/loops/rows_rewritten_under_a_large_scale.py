"""Rows and single biases are bounded by their parameter, in a copy that replaces the gradient, while the loss scale is in it."""

import torch
from torch import nn


def bound_units(module, ratio):
    for p in module.parameters():
        g = p.grad
        dims = tuple(range(1, g.ndim))
        size = g.norm(dim=dims, keepdim=True) if dims else g.abs()
        limit = ratio * (p.detach().norm(dim=dims, keepdim=True) if dims else p.detach().abs()).clamp(min=1e-3)
        p.grad = torch.where(size > limit, g * limit / size.clamp(min=1e-6), g)


torch.manual_seed(302)
model = nn.Sequential(nn.Linear(12, 40), nn.SiLU(), nn.Linear(40, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)
for _ in range(32):
    x = torch.randn(24, 12)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    scaler.scale(loss).backward()
    bound_units(model, 0.04)
    scaler.step(optimizer)
    scaler.update()
print(loss.item())
