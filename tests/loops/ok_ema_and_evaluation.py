"""An averaged copy of the weights and an evaluation every few updates, with gradients of its own for an adversarial probe."""

import copy

import torch
from torch import nn

torch.manual_seed(21)
net = nn.Sequential(nn.Linear(5, 32), nn.SiLU(), nn.Linear(32, 3))
ema = copy.deepcopy(net).requires_grad_(False)
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
x, x_val = torch.randn(240, 5), torch.randn(40, 5)


def label(t):
    return t[:, :3].argmax(1)


def robustness(model):
    probe = x_val.clone().requires_grad_(True)
    loss = nn.functional.cross_entropy(model(probe), label(x_val))
    (g,) = torch.autograd.grad(loss, probe)
    with torch.no_grad():
        return (model(x_val + 0.1 * g.sign()).argmax(1) == label(x_val)).float().mean().item()


for it in range(40):
    xb = x[torch.randint(0, 240, (24,))]
    loss = nn.functional.cross_entropy(net(xb) * 2, label(xb))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.9)
    opt.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), net.parameters(), strict=True):
            e.lerp_(p, 0.1)
    if it % 8 == 7:
        print(it, f"{loss.item():.3f}", f"{robustness(ema):.2f}")
