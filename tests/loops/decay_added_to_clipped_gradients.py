"""L2 regularisation is put into the gradients after the clip."""

import torch
from torch import nn


class L2:
    def __init__(self, module, strength):
        self.module, self.strength = module, strength

    @torch.no_grad()
    def apply(self):
        for p in self.module.parameters():
            p.grad.add_(p, alpha=self.strength)


torch.manual_seed(55)
model = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
l2 = L2(model, 0.3)
for it in range(40):
    x = torch.randn(20, 4)
    loss = nn.functional.l1_loss(model(x), x[:, :1] * 8)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.6)
    l2.apply()
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
