"""The whole step is one compiled function: backward, clip and optimizer."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--clip", type=float, default=1.5)
a = p.parse_args()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.02)


@torch.compile(backend="eager")
def train_step(x, y):
    opt.zero_grad()
    loss = F.mse_loss(net(x).squeeze(1), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), a.clip)
    opt.step()
    return loss


for _it in range(35):
    x = torch.randn(16, 8)
    loss = train_step(x, x[:, 0] - 2 * x[:, 1])
print(loss.item())
