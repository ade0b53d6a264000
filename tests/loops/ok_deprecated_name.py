"""The function's old name, without the underscore."""

import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(211)
model = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.02)
for it in range(40):
    x = torch.randn(20, 5)
    loss = nn.functional.mse_loss(model(x), 5 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm(model.parameters(), 5)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
