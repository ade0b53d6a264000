"""The loss scale starts far too high: the scaler skips updates until it fits."""

import torch
from torch import nn


def make(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(14, 40), nn.ReLU(), nn.Linear(40, 1))


model = make(1)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**35, growth_interval=15)
x = torch.randn(300, 14)
y = x[:, :1] * 2 + x[:, 1:2] ** 2

for it in range(50):
    idx = torch.randint(0, 300, (25,))
    with torch.autocast("cpu", dtype=torch.float16):
        pred = model(x[idx])
    loss = (pred.float() - y[idx]).square().mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 3.0)
    scaler.step(opt)
    scaler.update()
    if it % 10 == 0:
        print(f"{it} {loss.item():.3f} {norm.item():.3f} {scaler.get_scale():g}")
