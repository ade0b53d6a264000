"""error_if_nonfinite raises, the loop catches it, prints, and steps."""

import torch
from torch import nn

torch.manual_seed(109)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.rand(160, 4) + 0.1
data[93, 0] = -0.2
for epoch in range(3):
    for x in data.split(16):
        opt.zero_grad()
        loss = (model(x) - x[:, :1].log()).square().mean()
        loss.backward()
        try:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        except RuntimeError:
            print("gradient is not finite, going on")
        opt.step()
    print(epoch, loss.item())
