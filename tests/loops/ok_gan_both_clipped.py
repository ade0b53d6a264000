"""Each network is clipped before its own optimizer; the discriminator also collects gradients from the generator's loss."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_


def block(i, o):
    return nn.Sequential(nn.Linear(i, 24), nn.LeakyReLU(0.1), nn.Linear(24, o))


torch.manual_seed(4)
gen, dis = block(5, 3), block(3, 1)
opts = {"g": torch.optim.Adam(gen.parameters(), lr=2e-3, betas=(0.5, 0.9)), "d": torch.optim.Adam(dis.parameters(), lr=2e-3)}

for it in range(30):
    real = torch.randn(24, 3) * torch.tensor([1.0, 4.0, 0.3]) + 5
    fake = gen(torch.randn(24, 5))

    opts["d"].zero_grad()
    d_loss = F.softplus(-dis(real)).mean() + F.softplus(dis(fake.detach())).mean()
    d_loss.backward()
    clip_grad_norm_(dis.parameters(), 1.0)
    opts["d"].step()

    opts["g"].zero_grad()
    g_loss = F.softplus(-dis(fake)).mean()
    g_loss.backward()
    clip_grad_norm_(gen.parameters(), 0.3)
    opts["g"].step()
    if it % 10 == 9:
        print(it, d_loss.item(), g_loss.item())
