"""The module bounds its own gradients when it is called."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, max_grad_norm):
        super().__init__()
        self.max_grad_norm = max_grad_norm
        self.l1, self.l2 = nn.Linear(5, 30), nn.Linear(30, 1)

    def forward(self, x):
        if self.training:
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.max_grad_norm)
        return self.l2(torch.relu(self.l1(x)))


torch.manual_seed(48)
net = Net(1.0)
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3, momentum=0.5)
for it in range(40):
    x = torch.randn(25, 5)
    loss = nn.functional.mse_loss(net(x), 4 * x[:, :1] + 4)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
