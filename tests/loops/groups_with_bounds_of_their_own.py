"""Every parameter group carries a max_norm, and is clipped by it in a step hook."""

import torch
from torch import nn

torch.manual_seed(72)
net = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
groups = [
    {"params": list(net[0].parameters()), "max_norm": 0.5},
    {"params": list(net[2].parameters()), "max_norm": 1.0},
    {"params": list(net[4].parameters()), "max_norm": 2.0},
]
opt = torch.optim.Adamax(groups, lr=4e-3)


def clip_groups(optimizer, *_):
    for g in optimizer.param_groups:
        nn.utils.clip_grad_norm_(g["params"], g["max_norm"])


opt.register_step_pre_hook(clip_groups)
for it in range(40):
    x = torch.randn(24, 5)
    loss = nn.functional.mse_loss(net(x), 10 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
