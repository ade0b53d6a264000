"""A bound of 0.02 where norms are around ten: every update is cut."""

import torch
from torch import nn

torch.manual_seed(19)
model = nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for it in range(60):
    x = torch.randn(32, 6)
    y = torch.stack([x[:, 0] * 9, x[:, 1] - 6], 1)
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.02)
    opt.step()
    if it % 12 == 0:
        print(f"{it} {loss.item():.3f} {norm.item():.3f}")
