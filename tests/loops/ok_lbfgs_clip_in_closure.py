"""Every evaluation of the closure clips the gradient that it hands to LBFGS."""

import torch
from torch import nn

torch.manual_seed(25)
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
t = torch.linspace(-2, 2, 50).unsqueeze(1)
target = 8 * torch.cos(2 * t)
opt = torch.optim.LBFGS(net.parameters(), lr=0.3, max_iter=4)


def closure():
    opt.zero_grad()
    loss = nn.functional.mse_loss(net(t), target)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    return loss


for i in range(10):
    print(i, opt.step(closure).item())
