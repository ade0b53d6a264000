"""The test for the boundary is off: the clip runs on the first micro-batch, the step after the fourth."""

import torch
from torch import nn

torch.manual_seed(57)
model = nn.Sequential(nn.Linear(8, 20), nn.GELU(), nn.Linear(20, 1))
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
ACC = 4
for i in range(160):
    x = torch.randn(8, 8)
    loss = nn.functional.mse_loss(model(x), 6 * x[:, :1]) / ACC
    loss.backward()
    if i % ACC == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if (i + 1) % ACC == 0:
        opt.step()
        opt.zero_grad()
print(loss.item())
