"""The callback that clips is called when the update has been done."""

import torch
from torch import nn


class ClipCallback:
    def __init__(self, max_norm):
        self.max_norm = max_norm

    def on_batch_end(self, model):
        nn.utils.clip_grad_norm_(model.parameters(), self.max_norm)


class PrintCallback:
    count = 0

    def on_batch_end(self, model):
        self.count += 1
        if self.count % 16 == 0:
            print("weights", sum(p.abs().sum().item() for p in model.parameters()))


def fit(model, opt, data, epochs, callbacks):
    for _ in range(epochs):
        for x, y in data:
            opt.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            opt.step()
            for cb in callbacks:
                cb.on_batch_end(model)


torch.manual_seed(1)
xs = torch.randn(160, 7)
ys = xs[:, :1] * 5 - xs[:, 1:2] * xs[:, 2:3]
model = nn.Sequential(nn.Linear(7, 18), nn.ReLU(), nn.Linear(18, 1))
fit(
    model,
    torch.optim.SGD(model.parameters(), lr=3e-3),
    list(zip(xs.split(20), ys.split(20), strict=True)),
    5,
    [ClipCallback(1.0), PrintCallback()],
)
