"""unscale_, clip, step and update happen once for each group of micro-batches."""

import torch
from torch import nn

torch.manual_seed(200)
model = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 1))
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=12)
K = 3
for i in range(120):
    x = torch.randn(12, 9)
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    loss = nn.functional.mse_loss(out.float(), 5 * x[:, :1] * x[:, 1:2]) / K
    scaler.scale(loss).backward()
    if (i + 1) % K:
        continue
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 4.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    if i % 30 == 29:
        print(i, loss.item(), scaler.get_scale())
