"""norm_type=inf: one factor for all, taken from the largest entry."""

import torch
from torch import nn

torch.manual_seed(212)
model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1))
opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
for it in range(40):
    x = torch.randn(20, 5)
    loss = nn.functional.mse_loss(model(x), 6 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=2.0, norm_type=float("inf"))
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), norm.item())
