"""The filter object is made once, outside the loop: the first update is clipped, the others are not."""

import torch
from torch import nn

torch.manual_seed(62)
model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
trainable = filter(lambda p: p.requires_grad, model.parameters())
for it in range(40):
    x = torch.randn(20, 5)
    loss = nn.functional.mse_loss(model(x), 5 * x[:, :1] + 3)
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(trainable, 1.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item(), float(norm))
