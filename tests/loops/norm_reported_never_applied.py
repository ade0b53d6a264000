"""The helper compares the norm with the bound and says so, but scales nothing."""

import torch
from torch import nn


def check_gradients(model, max_norm):
    total = 0.0
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.detach().norm(2).item() ** 2
    total = total**0.5
    clipped = total > max_norm
    return total, clipped


def train(steps=45, max_norm=1.0):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 20), nn.Sigmoid(), nn.Linear(20, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(steps):
        x = torch.randn(24, 6)
        y = x.sum(1, keepdim=True) * 3
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        norm, clipped = check_gradients(model, max_norm)
        opt.step()
        if step % 9 == 0:
            print(f"step {step} loss {loss.item():.2f} grad norm {norm:.2f}{' (clipped)' if clipped else ''}")


train()
