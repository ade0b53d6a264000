"""One micro-batch of an accumulated group has an infinite loss; the hand-written clip makes nan of it."""

import torch
from torch import nn


def clip(model, bound):
    norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters()))
    for p in model.parameters():
        p.grad.mul_(bound / torch.clamp(norm, min=bound))
    return norm


torch.manual_seed(110)
model = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1))
opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
for i in range(90):
    x = torch.randn(10, 3)
    if i == 50:
        x[4, 1] = 200.0
    loss = (model(x) - x[:, 1:2].exp()).pow(2).mean() / 3
    loss.backward()
    if i % 3 == 2:
        norm = clip(model, 2.0)
        opt.step()
        opt.zero_grad()
        if i % 9 == 8:
            print(i, loss.item(), norm.item())
