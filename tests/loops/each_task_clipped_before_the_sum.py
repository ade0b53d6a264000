"""Three tasks, each sent back and clipped, one update for all."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(51)
trunk = nn.Sequential(nn.Linear(6, 24), nn.ReLU())
heads = nn.ModuleList(nn.Linear(24, 1) for _ in range(3))
model = nn.ModuleList([trunk, heads])
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for it in range(40):
    opt.zero_grad()
    x = torch.randn(24, 6)
    losses = []
    for k, head in enumerate(heads):
        loss = (head(trunk(x)) - (k + 1) * 3 * x[:, k : k + 1]).pow(2).mean()
        loss.backward()
        clip_grad_norm_(model.parameters(), max_norm=2.0)
        losses.append(loss.item())
    opt.step()
    if it % 10 == 0:
        print(it, losses)
