"""A bfloat16 model with float32 master weights: gradients are moved over, clipped there, and the weights copied back."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class MasterWeights:
    def __init__(self, model, optim, **kw):
        self.low = [p for p in model.parameters() if p.requires_grad]
        self.high = [nn.Parameter(p.detach().clone().float()) for p in self.low]
        self.optim = optim(self.high, **kw)

    def pull(self):
        for low, high in zip(self.low, self.high, strict=False):
            high.grad = None if low.grad is None else low.grad.float()
            low.grad = None

    def clip(self, limit):
        return nn.utils.clip_grad_norm_(self.high, limit)

    @torch.no_grad()
    def step(self):
        self.optim.step()
        for low, high in zip(self.low, self.high, strict=False):
            low.copy_(high)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--clip", type=float, default=3.5)
    a = p.parse_args()
    torch.manual_seed(49)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)).to(torch.bfloat16)
    opt = MasterWeights(model, torch.optim.AdamW, lr=3e-3)
    for it in range(40):
        x = torch.randn(32, 8, dtype=torch.bfloat16)
        loss = F.mse_loss(model(x).squeeze(1).float(), 2 * x[:, 0].float())
        loss.backward()
        opt.pull()
        n = opt.clip(a.clip)
        opt.step()
        if it % 10 == 0:
            print(it, loss.item(), n.item())


main()
