"""zero_grad follows backward at once: neither the clip nor the step has a gradient."""

import torch
from torch import nn

torch.manual_seed(121)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for it in range(40):
    x = torch.randn(16, 6)
    loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    loss.backward()
    opt.zero_grad()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
