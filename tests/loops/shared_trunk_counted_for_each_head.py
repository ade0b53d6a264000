"""Two networks share a trunk; their parameter lists are joined."""

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.trunk, self.out = trunk, nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.trunk(x))


torch.manual_seed(106)
trunk = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
mean, spread = Head(trunk), Head(trunk)
unique = list(dict.fromkeys([*mean.parameters(), *spread.parameters()]))
opt = torch.optim.Adam(unique, lr=4e-3)
for it in range(40):
    x = torch.randn(24, 5)
    y = 3 * x[:, :1] + x[:, 1:2].exp() * torch.randn(24, 1)
    log_s = spread(x).clamp(-3, 3)
    loss = (0.5 * ((y - mean(x)) / log_s.exp()) ** 2 + log_s).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([*mean.parameters(), *spread.parameters()], 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
