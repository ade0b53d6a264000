"""Matrices and vectors go to different optimizers; one norm bounds both."""

import torch
from torch import nn

torch.manual_seed(11)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
matrices = [p for p in model.parameters() if p.ndim == 2]
vectors = [p for p in model.parameters() if p.ndim < 2]
slow = torch.optim.SGD(matrices, lr=2e-3, momentum=0.95)
fast = torch.optim.Adam(vectors, lr=1e-2)
x = torch.randn(200, 10)
y = torch.stack([x[:, 0] * x[:, 1] * 5, x[:, 2] * 7], 1)

for it in range(36):
    idx = torch.randint(0, 200, (20,))
    loss = nn.functional.mse_loss(model(x[idx]), y[idx])
    for o in (slow, fast):
        o.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(matrices + vectors, 5.0)
    for o in (slow, fast):
        o.step()
    if it % 9 == 0:
        print(f"{it:3d} {loss.item():8.3f} {float(norm):8.3f}")
