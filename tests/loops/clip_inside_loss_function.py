"""The helper that computes the loss also clips, before there is any gradient."""

import torch
from torch import nn

max_norm = 1.5


def compute_loss(model, x, y):
    pred = model(x)
    loss = nn.functional.mse_loss(pred, y)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return loss


torch.manual_seed(2)
model = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(40):
    opt.zero_grad()
    x = torch.randn(32, 4)
    loss = compute_loss(model, x, 4 * x[:, :1] + x[:, 1:2] ** 2)
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(f"{step:4d} {loss.item():.4f}")
