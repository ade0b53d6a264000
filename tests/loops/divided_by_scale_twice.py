"""The loop divides by the loss scale itself, and the scaler does it again in step."""

import torch
from torch import nn

torch.manual_seed(18)
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
for it in range(40):
    x = torch.randn(32, 8)
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    loss = nn.functional.mse_loss(out.float(), 4 * x[:, :1])
    scaler.scale(loss).backward()
    inv = 1.0 / scaler.get_scale()
    for p in model.parameters():
        p.grad.mul_(inv)
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    scaler.step(opt)
    scaler.update()
    if it % 10 == 0:
        print(it, loss.item())
