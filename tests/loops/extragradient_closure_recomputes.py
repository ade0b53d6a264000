"""An optimizer of one's own that calls the closure again from a shifted point; the clip was done outside."""

import torch
from torch import nn


class Extragradient(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def step(self, closure):
        params = [p for g in self.param_groups for p in g["params"]]
        lr = self.param_groups[0]["lr"]
        with torch.no_grad():
            start = [p.clone() for p in params]
            for p in params:
                p.sub_(lr * p.grad)
        with torch.enable_grad():
            loss = closure()
        with torch.no_grad():
            for p, s in zip(params, start, strict=True):
                p.copy_(s - lr * p.grad)
        return loss


torch.manual_seed(124)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
opt = Extragradient(model.parameters(), lr=0.01)
x = torch.randn(64, 4)
y = 6 * x[:, :1]


def closure():
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for it in range(30):
    closure()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    loss = opt.step(closure)
    if it % 10 == 0:
        print(it, loss.item())
