"""Each entry of each gradient is clamped."""

import torch
from torch import nn

clip_norm = 0.5
torch.manual_seed(14)
model = nn.GRU(2, 16, batch_first=True)
out = nn.Linear(16, 1)
params = list(model.parameters()) + list(out.parameters())
opt = torch.optim.SGD(params, lr=0.02)
for it in range(40):
    x = torch.randn(20, 8, 2)
    y = x[..., :1].cumsum(1) * 4
    loss = (out(model(x)[0]) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    for p in params:
        p.grad.data.clamp_(-clip_norm, clip_norm)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
