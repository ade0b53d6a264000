"""A clip by hand before LBFGS is asked to step; only its closure decides."""

import torch
from torch import nn

torch.manual_seed(125)
w = nn.Parameter(torch.randn(8, 3) * 0.5)
v = nn.Parameter(torch.zeros(1, 8))
params = [w, v]
x = torch.randn(80, 3)
y = 10 * torch.sigmoid(x[:, :1])
opt = torch.optim.LBFGS(params, lr=0.5, max_iter=5, history_size=5)


def objective():
    return (torch.tanh(x @ w.T) @ v.T - y).pow(2).mean()


def closure():
    for p in params:
        p.grad = None
    loss = objective()
    loss.backward()
    return loss


for it in range(10):
    loss = closure()
    norm = torch.cat([p.grad.flatten() for p in params]).norm()
    if norm > 1.0:
        for p in params:
            p.grad.div_(norm)
    opt.step(closure)
    print(it, loss.item(), norm.item())
