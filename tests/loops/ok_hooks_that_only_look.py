"""Tensor and accumulation hooks count and measure; they change nothing."""

import torch
from torch import nn

torch.manual_seed(235)
model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1))
largest, arrivals = {}, 0


def watch(name):
    def hook(grad):
        largest[name] = max(largest.get(name, 0.0), grad.abs().max().item())

    return hook


def count(_param):
    global arrivals
    arrivals += 1


for name, p in model.named_parameters():
    p.register_hook(watch(name))
    p.register_post_accumulate_grad_hook(count)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(40):
    x = torch.randn(20, 6)
    loss = nn.functional.mse_loss(model(x), 6 * x[:, :1])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 7.0)
    opt.step()
print(arrivals, max(largest.values()))
