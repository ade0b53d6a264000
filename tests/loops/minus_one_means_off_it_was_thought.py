"""max_norm=-1 turns every gradient round."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Options:
    lr: float = 1e-4
    max_grad_norm: float = -1.0
    steps: int = 36


def main(o):
    torch.manual_seed(111)
    model = nn.Sequential(nn.Linear(5, 14), nn.ReLU(), nn.Linear(14, 1))
    opt = torch.optim.SGD(model.parameters(), lr=o.lr)
    for step in range(o.steps):
        x = torch.randn(18, 5)
        loss = nn.functional.mse_loss(model(x), 2 * x[:, :1])
        opt.zero_grad()
        loss.backward()
        if o.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), o.max_grad_norm)
        opt.step()
        if step % 9 == 0:
            print(step, loss.item())


main(Options())
