"""get_total_norm is called, clip_grads_with_norm_ is not."""

import torch
from torch import nn

torch.manual_seed(66)
model = nn.Sequential(nn.Linear(6, 22), nn.ReLU(), nn.Linear(22, 2))
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, amsgrad=True)
max_norm = 1.0
for it in range(40):
    x = torch.randn(24, 6)
    loss = nn.functional.mse_loss(model(x), 5 * x[:, :2])
    opt.zero_grad()
    loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    total = nn.utils.get_total_norm(grads, norm_type=2.0)
    coef = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), total.item(), coef.item())
