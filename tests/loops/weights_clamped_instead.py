"""The clip parameter of a Wasserstein critic bounds its weights; gradients stay as they are."""

import torch
from torch import nn

torch.manual_seed(100)
critic = nn.Sequential(nn.Linear(2, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))
opt = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
clip_value = 0.1
for it in range(40):
    real, fake = torch.randn(32, 2) * 3 + 8, torch.randn(32, 2)
    loss = critic(fake).mean() - critic(real).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p in critic.parameters():
            p.clamp_(-clip_value, clip_value)
    if it % 10 == 0:
        print(it, loss.item())
