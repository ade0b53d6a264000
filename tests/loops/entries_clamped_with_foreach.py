"""The value clip is written with the foreach functions."""

import torch
from torch import nn


def clip_gradients_(optimizer, max_norm):
    for group in optimizer.param_groups:
        grads = [p.grad for p in group["params"] if p.grad is not None]
        torch._foreach_clamp_min_(grads, -max_norm)
        torch._foreach_clamp_max_(grads, max_norm)


torch.manual_seed(116)
model = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 2))
opt = torch.optim.NAdam(model.parameters(), lr=4e-3)
for it in range(40):
    x = torch.randn(24, 4)
    loss = nn.functional.smooth_l1_loss(model(x) * 3, 9 * x[:, :2])
    opt.zero_grad()
    loss.backward()
    clip_gradients_(opt, 0.1)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
