"""unscale_, step, update, and then the norm is bounded."""

import torch
from torch import nn


def bound_gradients(model, limit):
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    if norm > limit:
        for p in model.parameters():
            p.grad.div_(norm / limit)
    return norm.item()


torch.manual_seed(45)
model = nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 1))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
for it in range(40):
    x = torch.randn(20, 2, 8)
    y = 6 * x[:, 0, :1]
    opt.zero_grad()
    loss = (model(x) - y).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
    norm = bound_gradients(model, 1.0)
    if it % 10 == 0:
        print(f"{it} {loss.item():.3f} {norm:.3f}")
