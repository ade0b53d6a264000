"""The discriminator's two losses are sent back and clipped one after the other, then one step is made."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(50)
gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
dis = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
og = torch.optim.Adam(gen.parameters(), lr=1e-3)
od = torch.optim.Adam(dis.parameters(), lr=1e-3)
one, zero = torch.ones(20, 1), torch.zeros(20, 1)
for it in range(30):
    real = torch.randn(20, 2) + 6
    fake = gen(torch.randn(20, 4))
    od.zero_grad()
    for sample, label in ((real, one), (fake.detach(), zero)):
        loss = F.binary_cross_entropy_with_logits(dis(sample), label)
        loss.backward()
        nn.utils.clip_grad_norm_(dis.parameters(), 0.2)
    od.step()
    og.zero_grad()
    g_loss = F.binary_cross_entropy_with_logits(dis(fake), one)
    g_loss.backward()
    nn.utils.clip_grad_norm_(gen.parameters(), 0.2)
    og.step()
    if it % 10 == 0:
        print(it, loss.item(), g_loss.item())
