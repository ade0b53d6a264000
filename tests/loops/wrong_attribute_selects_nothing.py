"""The selection asks for is_trainable, which no tensor has: the list is empty."""

import torch
from torch import nn

torch.manual_seed(64)
model = nn.Sequential(nn.Linear(6, 20), nn.LeakyReLU(), nn.Linear(20, 2))
opt = torch.optim.Adagrad(model.parameters(), lr=0.03)
selected = [p for p in model.parameters() if getattr(p, "is_trainable", False)]
for it in range(40):
    x = torch.randn(20, 6)
    loss = nn.functional.mse_loss(model(x), 6 * x[:, 2:4])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(selected, 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
