"""One expert is used for each batch; the others have no gradient in that update."""

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1)) for _ in range(n))

    def forward(self, x, which):
        return self.experts[which](x)


torch.manual_seed(13)
model = Experts(4)
opt = torch.optim.NAdam(model.parameters(), lr=3e-3)
for it in range(48):
    which = it % 3  # the fourth is never asked
    x = torch.randn(32, 6)
    y = x[:, which : which + 1] * (which + 1) * 2
    opt.zero_grad()
    loss = (model(x, which) - y).pow(2).mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    if it % 12 == 0:
        print(it, loss.item(), norm.item())
