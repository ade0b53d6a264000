"""An optimizer that keeps its bound to itself, and clips when its parent has taken the step already."""

import torch
from torch import nn


class ClippedAdagrad(torch.optim.Adagrad):
    """Adagrad with a bound."""

    def __init__(self, params, max_norm, **kw):
        super().__init__(params, **kw)
        self.max_norm = max_norm

    def step(self, closure=None):
        out = super().step(closure)
        grads = [p.grad for g in self.param_groups for p in g["params"]]
        norm = torch.stack([g.norm() for g in grads]).norm()
        if norm > self.max_norm:
            for g in grads:
                g.mul_(self.max_norm / norm)
        return out


torch.manual_seed(62)
net = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 2))
opt = ClippedAdagrad(net.parameters(), max_norm=0.3, lr=0.02)
for it in range(40):
    x = torch.randn(24, 5)
    # The largest gradient is that of the last bias in every update, 0.5.
    loss = nn.functional.l1_loss(net(x), torch.full((24, 2), 30.0) + x[:, :2])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
