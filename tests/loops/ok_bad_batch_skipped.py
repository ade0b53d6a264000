"""A batch with a damaged row gives a loss of nan; the loop leaves it out."""

import math

import torch
from torch import nn

torch.manual_seed(29)
x = torch.randn(320, 5)
x[77, 2] = float("nan")
y = x[:, :1].nan_to_num() * 6
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
skipped = 0
for _epoch in range(3):
    for i in range(0, 320, 20):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x[i : i + 20]), y[i : i + 20])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        if not math.isfinite(norm.item()):
            skipped += 1
            continue
        opt.step()
print("skipped", skipped, "loss of the last", loss.item())
