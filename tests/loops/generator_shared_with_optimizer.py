"""One generator is given to the optimizer first and to the clip after that."""

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(6)
model = nn.Sequential(nn.Linear(5, 25), nn.ReLU(), nn.Linear(25, 1))
params = model.parameters()
opt = torch.optim.RMSprop(params, lr=2e-3)
for it in range(40):
    x = torch.randn(40, 5)
    loss = nn.functional.mse_loss(model(x), 5 * x[:, :1] * x[:, 1:2])
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), float(norm))
