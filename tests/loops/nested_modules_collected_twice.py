"""model.modules() visits every level, and each level's parameters() includes the levels below."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        return x + self.ff(x)


torch.manual_seed(105)
model = nn.Sequential(Block(6), Block(6), nn.Linear(6, 1))
params = []
for module in model.modules():
    params.extend(module.parameters())
opt = torch.optim.SGD(model.parameters(), lr=0.02, nesterov=True, momentum=0.8)
for it in range(40):
    x = torch.randn(20, 6)
    loss = nn.functional.mse_loss(model(x), 4 * x[:, :1] - x[:, 1:2])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, 2.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
