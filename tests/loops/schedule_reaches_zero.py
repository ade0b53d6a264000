"""The bound is halved with integer division as training goes on, and becomes zero."""

import torch
from torch import nn

torch.manual_seed(113)
model = nn.Sequential(nn.Linear(6, 20), nn.ELU(), nn.Linear(20, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
max_norm = 8
for epoch in range(6):
    for _ in range(9):
        x = torch.randn(20, 6)
        loss = nn.functional.mse_loss(model(x), 5 * x[:, :1])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        opt.step()
    print(epoch, loss.item(), max_norm)
    max_norm = max_norm // 2
