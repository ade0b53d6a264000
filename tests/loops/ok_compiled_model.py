"""torch.compile around the model (eager backend)."""

import torch
from torch import nn

torch.manual_seed(209)
raw = nn.Sequential(nn.Linear(7, 24), nn.GELU(), nn.Linear(24, 1))
model = torch.compile(raw, backend="eager")
opt = torch.optim.AdamW(raw.parameters(), lr=4e-3)
for it in range(40):
    x = torch.randn(16, 7)
    loss = nn.functional.mse_loss(model(x), 5 * x[:, :1] - x[:, 1:2])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
