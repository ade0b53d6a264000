"""on_before_step clears the gradients that were clipped a moment ago."""

import torch
from torch import nn


class Callback:
    def on_after_backward(self, model, opt):
        pass

    def on_before_step(self, model, opt):
        pass


class Clip(Callback):
    def on_after_backward(self, model, opt):
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)


class ClearGradients(Callback):
    def on_before_step(self, model, opt):
        opt.zero_grad(set_to_none=False)


torch.manual_seed(122)
model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
callbacks = [Clip(), ClearGradients()]
for it in range(40):
    x = torch.randn(16, 4)
    loss = nn.functional.mse_loss(model(x), 5 * x[:, :1])
    loss.backward()
    for c in callbacks:
        c.on_after_backward(model, opt)
    for c in callbacks:
        c.on_before_step(model, opt)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
