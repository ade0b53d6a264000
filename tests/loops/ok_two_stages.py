"""Pretrain an autoencoder, then train a classifier on it with a new optimizer and another bound."""

import torch
from torch import nn

torch.manual_seed(27)
enc, dec, cls = nn.Linear(12, 4), nn.Linear(4, 12), nn.Linear(4, 3)
x = torch.randn(200, 4) @ torch.randn(4, 12) * 2
y = x[:, :3].argmax(1)


def stage(name, modules, loss_of, lr, max_norm, steps):
    params = [p for m in modules for p in m.parameters()]
    opt = torch.optim.Adam(params, lr=lr)
    for _ in range(steps):
        idx = torch.randint(0, 200, (40,))
        loss = loss_of(x[idx], y[idx])
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, max_norm)
        opt.step()
    print(f"{name}: {loss.item():.3f}")


stage("autoencoder", [enc, dec], lambda a, _: nn.functional.mse_loss(dec(torch.tanh(enc(a))), a), 1e-2, 3.0, 25)
stage("classifier", [enc, cls], lambda a, b: nn.functional.cross_entropy(cls(torch.tanh(enc(a))), b), 5e-3, 0.5, 25)
