"""The clip is registered with the optimizer and runs before each of its steps."""

import torch
from torch import nn

torch.manual_seed(30)
model = nn.Sequential(nn.Linear(6, 24), nn.ELU(), nn.Linear(24, 2))
opt = torch.optim.RAdam(model.parameters(), lr=8e-3)


def clip(optimizer, args, kwargs):
    params = [p for g in optimizer.param_groups for p in g["params"]]
    nn.utils.clip_grad_norm_(params, 2.0)


handle = opt.register_step_pre_hook(clip)
x = torch.randn(160, 6)
y = torch.stack([x[:, 0] * 4, x[:, 1:4].norm(dim=1)], 1)
for epoch in range(8):
    for xb, yb in zip(x.chunk(5), y.chunk(5), strict=True):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        opt.step()
    print(epoch, loss.item())
handle.remove()
