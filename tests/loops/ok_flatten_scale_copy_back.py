"""Gradients are copied to a vector, scaled there, and copied back."""

import torch
from torch import nn

torch.manual_seed(221)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
params = list(model.parameters())
opt = torch.optim.Adam(params, lr=5e-3)
for it in range(40):
    x = torch.randn(20, 5)
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), 4 * x[:, :2])
    loss.backward()
    vector = torch.cat([p.grad.reshape(-1) for p in params])
    norm = torch.linalg.vector_norm(vector, dtype=torch.float64).item()
    vector *= min(1.0, 3.0 / (norm + 1e-12))
    for p, part in zip(params, vector.split([p.numel() for p in params]), strict=True):
        p.grad.copy_(part.view_as(p))
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), norm)
