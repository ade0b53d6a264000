"""grad = grad * coef gives a new tensor that nobody uses."""

import torch
from torch import nn


def clip_gradient(optimizer, max_norm):
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norm = torch.stack([g.norm() for g in grads]).norm()
    coef = max_norm / (norm + 1e-6)
    if coef < 1:
        for grad in grads:
            grad = grad * coef  # noqa: PLW2901
    return norm.item()


torch.manual_seed(65)
model = nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 1))
opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
for it in range(40):
    x = torch.randn(20, 5)
    loss = nn.functional.mse_loss(model(x), 7 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    n = clip_gradient(opt, 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), n)
