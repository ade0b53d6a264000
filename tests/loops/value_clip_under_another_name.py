"""clip_grad_value_ imported under a short name, called with the norm's bound."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_value_ as clip_grad

torch.manual_seed(114)
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
args = {"max_norm": 0.3}
for it in range(40):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), 6 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    clip_grad(model.parameters(), args["max_norm"])
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
