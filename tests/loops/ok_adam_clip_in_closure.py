"""step(closure) with Adam; the closure clears, computes and clips."""

import torch
from torch import nn

torch.manual_seed(231)
model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
batches = [torch.randn(20, 4) for _ in range(40)]
for it, x in enumerate(batches):

    def closure(x=x):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), 4 * x[:, :2])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        return loss

    loss = opt.step(closure)
    if it % 10 == 0:
        print(it, loss.item())
