"""Gradients are freed to save memory, before the optimizer has used them."""

import torch
from torch import nn


def free(model):
    for p in model.parameters():
        p.grad = None


torch.manual_seed(120)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for it in range(40):
    x = torch.randn(16, 4)
    loss = nn.functional.mse_loss(model(x), 3 * x[:, :1])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    free(model)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
