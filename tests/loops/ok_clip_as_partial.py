"""The clip is bound to its arguments once (a list, not an iterator) and called in each update."""

from functools import partial

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(210)
model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1))
clip = partial(clip_grad_norm_, list(model.parameters()), max_norm=4.0, error_if_nonfinite=True)
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.98)
for it in range(40):
    x = torch.randn(20, 5)
    loss = nn.functional.mse_loss(model(x), 5 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    norm = clip()
    opt.step()
    schedule.step()
    if it % 10 == 0:
        print(it, loss.item(), norm.item())
