"""The loss is a mean over everything, the bound was chosen for a sum."""

import torch
from torch import nn

torch.manual_seed(129)
model = nn.Sequential(nn.Embedding(25, 12), nn.Flatten(), nn.Linear(60, 25))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for i in range(120):
    tok = torch.randint(0, 25, (10, 5))
    loss = nn.functional.cross_entropy(model(tok), tok[:, 2]) / 2
    loss.backward()
    if i % 2:
        nn.utils.clip_grad_norm_(model.parameters(), 1000.0)
        opt.step()
        opt.zero_grad()
    if i % 20 == 0:
        print(i, loss.item())
