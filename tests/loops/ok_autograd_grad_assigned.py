"""Gradients come from autograd.grad and are put in place by hand."""

import torch
from torch import nn

torch.manual_seed(24)
w1 = nn.Parameter(torch.randn(16, 6) * 0.4)
w2 = nn.Parameter(torch.randn(1, 16) * 0.4)
params = [w1, w2]
opt = torch.optim.SGD(params, lr=0.02)
for it in range(50):
    x = torch.randn(20, 6)
    y = x[:, :1].abs() * 5
    loss = (torch.relu(x @ w1.T) @ w2.T - y).square().mean()
    grads = torch.autograd.grad(loss, params)
    for p, g in zip(params, grads, strict=True):
        p.grad = g
    nn.utils.clip_grad_norm_(params, 8.0)
    opt.step()
    if it % 10 == 0:
        print(it, loss.item())
