"""The penalty on the input gradient is part of the loss (create_graph)."""

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(2, 32), nn.Softplus(), nn.Linear(32, 1))

    def forward(self, x):
        return self.f(x)


def penalty(critic, a, b):
    t = torch.rand(len(a), 1)
    mid = (t * a + (1 - t) * b).requires_grad_(True)
    (g,) = torch.autograd.grad(critic(mid).sum(), mid, create_graph=True)
    return (g.norm(2, dim=1) - 1).pow(2).mean()


torch.manual_seed(22)
critic = Critic()
opt = torch.optim.Adam(critic.parameters(), lr=5e-3, betas=(0.0, 0.9))
for it in range(40):
    real = torch.randn(32, 2) * 0.5 + torch.tensor([4.0, -2.0])
    fake = torch.randn(32, 2)
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(critic.parameters(), max_norm=3.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), norm.item())
