"""What is clipped before `step(closure)` are gradients that the closure left in the step before; it makes others."""

import torch
from torch import nn

torch.manual_seed(61)
net = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1))
params = list(net.parameters())
x = torch.randn(64, 3)
y = 5 * x[:, :1] * x[:, 1:2]
opt = torch.optim.LBFGS(params, lr=0.2, max_iter=3, line_search_fn="strong_wolfe")


def bound(limit):
    total = torch.cat([p.grad.flatten() for p in params]).norm()
    if total > limit:
        for p in params:
            p.grad.div_(total / limit)
    return total.item()


def closure():
    opt.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    return loss


closure()
for it in range(15):
    norm = bound(0.2)
    loss = opt.step(closure)
    if it % 5 == 0:
        print(it, loss.item(), norm)
