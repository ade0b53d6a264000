"""Two tasks whose gradients conflict: each is projected, the sum is put in place, then clipped."""

import torch
from torch import nn

torch.manual_seed(232)
model = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 2))
params = list(model.parameters())
opt = torch.optim.SGD(params, lr=0.03)


def flat_grad(loss):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, params, retain_graph=True)])


for it in range(40):
    x = torch.randn(20, 5)
    out = model(x)
    g1 = flat_grad((out[:, 0] - 4 * x[:, 0]).pow(2).mean())
    g2 = flat_grad((out[:, 1] + 4 * x[:, 0]).pow(2).mean())
    dot = torch.dot(g1, g2)
    if dot < 0:
        g1, g2 = g1 - dot / g2.square().sum() * g2, g2 - dot / g1.square().sum() * g1
    for p, g in zip(params, (g1 + g2).split([p.numel() for p in params]), strict=True):
        p.grad = g.view_as(p).clone()
    nn.utils.clip_grad_norm_(params, 5.0)
    opt.step()
    if it % 10 == 0:
        print(it, dot.item())
