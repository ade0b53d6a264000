"""unscale_ and a division by the loss scale, before the clip."""

import torch
from torch import nn

torch.manual_seed(127)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for it in range(40):
    x = torch.randn(20, 5)
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), 200 * x[:, :2])
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    for p in model.parameters():
        p.grad.div_(scaler.get_scale())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    if it % 10 == 0:
        print(it, loss.item())
