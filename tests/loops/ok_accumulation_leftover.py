"""Four micro-batches an update; the last, shorter group of an epoch is stepped too."""

import torch
from torch import nn

MAX_NORM = 2.0
ACCUM = 4


def batches(x, y, size):
    order = torch.randperm(len(x))
    for i in range(0, len(x), size):
        idx = order[i : i + size]
        yield x[idx], y[idx]


torch.manual_seed(3)
x = torch.randn(216, 9)
y = (x[:, :3].prod(1) * 4 + x[:, 3] * 3).unsqueeze(1)
net = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)

for epoch in range(5):
    pending = 0
    for xb, yb in batches(x, y, 8):
        (nn.functional.mse_loss(net(xb), yb) / ACCUM).backward()
        pending += 1
        if pending == ACCUM:
            nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
            pending = 0
    if pending:
        nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
    print("epoch", epoch)
