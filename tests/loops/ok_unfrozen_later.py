"""Gradual unfreezing: the optimizer and the list to clip grow together."""

import torch
from torch import nn

torch.manual_seed(17)
body = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
head = nn.Linear(32, 1)
body.requires_grad_(False)
trainable = list(head.parameters())
opt = torch.optim.Adam(trainable, lr=5e-3)
x = torch.randn(256, 8)
y = (x[:, :2].sum(1, keepdim=True) * 3).sin() * 4


def unfreeze(layer):
    layer.requires_grad_(True)
    new = list(layer.parameters())
    trainable.extend(new)
    opt.add_param_group({"params": new, "lr": 1e-3})


for epoch in range(6):
    if epoch == 2:
        unfreeze(body[2])
    if epoch == 4:
        unfreeze(body[0])
    for i in range(0, 256, 32):
        opt.zero_grad()
        loss = nn.functional.mse_loss(head(body(x[i : i + 32])), y[i : i + 32])
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 2.5)
        opt.step()
    print(f"epoch {epoch}: {len(trainable)} tensors, loss {loss.item():.3f}")
