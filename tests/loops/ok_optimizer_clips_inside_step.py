"""A subclass that clips, then lets its parent step."""

import torch
from torch import nn


class ClippedAdam(torch.optim.Adam):
    def __init__(self, params, max_norm, **kw):
        super().__init__(params, **kw)
        self.max_norm = max_norm

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([p for g in self.param_groups for p in g["params"]], self.max_norm)
        return super().step(closure)


if __name__ == "__main__":
    torch.manual_seed(36)
    net = nn.Sequential(nn.Linear(5, 24), nn.Mish(), nn.Linear(24, 4))
    opt = ClippedAdam(net.parameters(), max_norm=0.7, lr=6e-3)
    for it in range(45):
        x = torch.randn(30, 5)
        loss = nn.functional.cross_entropy(3 * net(x), x[:, :4].argmin(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 15 == 0:
            print(it, loss.item())
