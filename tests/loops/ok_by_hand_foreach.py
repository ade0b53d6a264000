"""Norm and scaling with the foreach functions."""

import torch
from torch import nn


@torch.no_grad()
def clip_(params, bound):
    grads = [p.grad for p in params if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    torch._foreach_mul_(grads, (bound / (norm + 1e-6)).clamp(max=1.0))
    return norm


torch.manual_seed(31)
model = nn.LSTMCell(4, 12)
read = nn.Linear(12, 1)
params = [*model.parameters(), *read.parameters()]
opt = torch.optim.Adamax(params, lr=1e-2)
for it in range(40):
    h = c = torch.zeros(16, 12)
    loss = 0.0
    total = torch.zeros(16, 1)
    for _ in range(5):
        x = torch.randn(16, 4)
        total += x[:, :1] * 2
        h, c = model(x, (h, c))
        loss = loss + (read(h) - total).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    norm = clip_(params, 8.0)
    opt.step()
    if it % 10 == 0:
        print(it, f"{loss.item():.2f} {norm.item():.2f}")
