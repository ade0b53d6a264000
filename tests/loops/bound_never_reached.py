"""A bound of 500 where norms stay around one."""

import torch
from torch import nn

torch.manual_seed(20)
model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 3))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for it in range(60):
    x = torch.randn(32, 5)
    loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 500.0)
    opt.step()
    if it % 20 == 0:
        print(it, loss.item())
