"""All gradients are views of one flat buffer; norm and scaling act on the buffer."""

import torch
from torch import nn


class FlatGrads:
    def __init__(self, module):
        self.params = list(module.parameters())
        self.buffer = torch.zeros(sum(p.numel() for p in self.params))
        at = 0
        for p in self.params:
            p.grad = self.buffer[at : at + p.numel()].view_as(p)
            at += p.numel()

    def zero(self):
        self.buffer.zero_()

    def clip(self, bound):
        norm = self.buffer.norm()
        self.buffer.mul_((bound / (norm + 1e-6)).clamp(max=1.0))
        return norm


torch.manual_seed(220)
model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1))
flat = FlatGrads(model)
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for it in range(45):
    x = torch.randn(20, 6)
    flat.zero()
    loss = nn.functional.mse_loss(model(x), 4 * x[:, :1])
    loss.backward()
    norm = flat.clip(4.0)
    opt.step()
    if it % 15 == 0:
        print(it, loss.item(), norm.item())
