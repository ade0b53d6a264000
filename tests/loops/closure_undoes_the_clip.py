"""The gradient clipped outside is thrown away: the closure computes it anew."""

import torch
from torch import nn

torch.manual_seed(17)
model = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 1))
x = torch.randn(64, 2)
y = 9 * (x[:, :1] * x[:, 1:2]).sin()
opt = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=3, line_search_fn="strong_wolfe")


def closure():
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for it in range(12):
    first = closure()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step(closure)
    print(it, first.item())
