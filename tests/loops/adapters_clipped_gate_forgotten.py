"""The filter on names catches the adapters and misses the gates, which are trained too."""

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, d=10):
        super().__init__()
        self.base = nn.Linear(d, d)
        self.base.requires_grad_(False)
        self.adapter_down, self.adapter_up = nn.Linear(d, 4), nn.Linear(4, d)
        self.gate = nn.Linear(d, d)

    def forward(self, x):
        return self.base(x) + torch.sigmoid(self.gate(x)) * self.adapter_up(torch.relu(self.adapter_down(x)))


torch.manual_seed(60)
model = nn.Sequential(Adapted(), nn.ReLU(), Adapted())
opt = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-3)
adapter_params = [p for n, p in model.named_parameters() if "adapter" in n]
for it in range(40):
    x = torch.randn(16, 10)
    loss = (model(x) - 4 * x.flip(1)).pow(2).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(adapter_params, 2.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), norm.item())
