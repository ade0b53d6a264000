"""The loop clips, and so does the optimizer that it calls, with a tighter bound."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_


class SafeSGD(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups[:1]:
            clip_grad_norm_(group["params"], 1.0)
        return super().step(closure)


torch.manual_seed(15)
model = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, 1))
opt = SafeSGD(model.parameters(), lr=0.02, momentum=0.9)
for it in range(40):
    x = torch.randn(25, 5)
    loss = nn.functional.mse_loss(model(x), 6 * x[:, :1] - 2)
    opt.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), 3.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
