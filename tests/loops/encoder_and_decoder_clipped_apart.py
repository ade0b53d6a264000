"""One optimizer, two calls: one for each part of the model."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(70)
encoder = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 12))
opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
basis = torch.randn(3, 12) * 3
for it in range(40):
    x = torch.randn(24, 3) @ basis
    loss = (decoder(encoder(x)) - x).pow(2).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    clip_grad_norm_(encoder.parameters(), 1.0)
    clip_grad_norm_(decoder.parameters(), 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
