"""The iteration begins with the clip: it sees the gradients of the iteration before, which are then cleared."""

import torch
from torch import nn

torch.manual_seed(47)
net = nn.Sequential(nn.Linear(3, 25), nn.ReLU(), nn.Linear(25, 1))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)


def before_backward(loss):
    nn.utils.clip_grad_norm_(net.parameters(), 2.0)
    opt.zero_grad()
    return loss


for it in range(40):
    x = torch.randn(16, 3)
    loss = nn.functional.mse_loss(net(x), 6 * x[:, :1].abs())
    before_backward(loss).backward()
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
