"""A sign-momentum optimizer written from scratch."""

import torch
from torch import nn


class SignMomentum(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])
                p.sub_(m.sign(), alpha=group["lr"])
        return loss


torch.manual_seed(215)
model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2))
opt = SignMomentum(model.parameters(), lr=3e-3)
for it in range(45):
    x = torch.randn(20, 6)
    loss = nn.functional.mse_loss(model(x), 4 * x[:, :2])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 4.0)
    opt.step()
    if it % 15 == 0:
        print(it, loss.item())
