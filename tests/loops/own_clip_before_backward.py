"""A clip by hand that is called before backward: what it scales is the gradient of the last update, cleared right after."""

import torch
from torch import nn


def clip(params, bound):
    with torch.no_grad():
        grads = [p.grad for p in params if p.grad is not None]
        norm = sum(g.square().sum() for g in grads) ** 0.5
        if norm > bound:
            for g in grads:
                g.mul_(bound / norm)
    return norm


torch.manual_seed(49)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
params = list(model.parameters())
opt = torch.optim.SGD(params, lr=0.02)
for it in range(40):
    x = torch.randn(16, 6)
    loss = nn.functional.mse_loss(model(x), 5 * x[:, :2])
    norm = clip(params, 1.0)
    opt.zero_grad(set_to_none=False)
    loss.backward()
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), float(norm))
