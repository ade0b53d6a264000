"""A subclass of SGD runs the closure, bounds the norm in its own step, and calls SGD's."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class ClippedSGD(torch.optim.SGD):
    """SGD that bounds the global norm of what it is given."""

    def __init__(self, params, lr, max_norm, **kw):
        super().__init__(params, lr, **kw)
        self.max_norm = max_norm
        self.last_norm = 0.0

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        grads = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, (self.max_norm / (norm + 1e-6)).clamp(max=1.0))
        self.last_norm = norm.item()
        super().step()
        return loss


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--max_norm", type=float, default=1.0)
    a = p.parse_args()
    torch.manual_seed(38)
    net = nn.Sequential(nn.Embedding(30, 16), nn.Flatten(), nn.Linear(64, 30))
    opt = ClippedSGD(net.parameters(), a.lr, a.max_norm, momentum=0.9)
    for it in range(40):
        x = torch.randint(0, 30, (32, 4))

        def closure(x=x):
            opt.zero_grad()
            loss = F.cross_entropy(net(x), x[:, 0])
            loss.backward()
            return loss

        loss = opt.step(closure)
        if it % 10 == 0:
            print(it, loss.item(), opt.last_norm)


main()
