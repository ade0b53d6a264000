"""A step hook that came with the optimizer clips too."""

import torch
from torch import nn


def make_optimizer(model):
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def bound(*_):
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)

    opt.register_step_pre_hook(bound)
    return opt


torch.manual_seed(117)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
opt = make_optimizer(model)
for it in range(40):
    x = torch.randn(24, 6)
    loss = nn.functional.mse_loss(model(x), 6 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
