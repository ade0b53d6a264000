"""A clip by hand on plain numbers whose bound is an attribute of a config; no norm reaches it."""

import argparse
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    lr: float = 3e-3
    grad_clip: float = 0.9
    steps: int = 40


class Trainer:
    def __init__(self, cfg, net):
        self.cfg, self.net = cfg, net
        self.opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr)

    def global_norm(self):
        return math.sqrt(sum(p.grad.pow(2).sum().item() for p in self.net.parameters() if p.grad is not None))

    def maybe_clip(self):
        n = self.global_norm()
        if n <= self.cfg.grad_clip:
            return n
        for p in self.net.parameters():
            if p.grad is not None:
                p.grad.data.mul_(self.cfg.grad_clip / n)
        return n

    def fit(self):
        for _it in range(self.cfg.steps):
            x = torch.randn(32, 8)
            loss = F.cross_entropy(self.net(x), x[:, :3].argmax(1))
            self.opt.zero_grad()
            loss.backward()
            n = self.maybe_clip()
            self.opt.step()
        print(loss.item(), n)


ap = argparse.ArgumentParser()
ap.add_argument("--grad-clip", type=float, default=0.9)
a = ap.parse_args()
torch.manual_seed(162)
Trainer(Config(grad_clip=a.grad_clip), nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))).fit()
