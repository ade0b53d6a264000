"""The inner step goes through autograd.grad with a graph; the outer gradient is clipped."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(226)
net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
meta = torch.optim.Adam(net.parameters(), lr=5e-3)
for it in range(30):
    meta.zero_grad()
    total = 0.0
    for _task in range(3):
        amp, phase = 1 + 4 * torch.rand(1), 3 * torch.rand(1)
        x = torch.rand(20, 1) * 6 - 3
        y = amp * torch.sin(x + phase)
        weights = dict(net.named_parameters())
        inner = nn.functional.mse_loss(functional_call(net, weights, x[:10]), y[:10])
        grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {k: w - 0.05 * g for (k, w), g in zip(weights.items(), grads, strict=True)}
        outer = nn.functional.mse_loss(functional_call(net, fast, x[10:]), y[10:])
        (outer / 3).backward()
        total += outer.item() / 3
    nn.utils.clip_grad_norm_(net.parameters(), 2.0)
    meta.step()
    if it % 10 == 0:
        print(it, total)
