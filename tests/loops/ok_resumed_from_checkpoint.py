"""Half way, model and optimizer are built anew and loaded from a checkpoint in memory."""

import io

import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 1))
    return model, torch.optim.Adam(model.parameters(), lr=3e-3)


def train(model, opt, steps):
    for _ in range(steps):
        x = torch.randn(20, 5)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), 5 * x[:, :1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 4.5)
        opt.step()
    return loss.item()


torch.manual_seed(229)
model, opt = build()
print(train(model, opt, 20))
file = io.BytesIO()
torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
file.seek(0)
model, opt = build()
saved = torch.load(file, weights_only=True)
model.load_state_dict(saved["model"])
opt.load_state_dict(saved["opt"])
print(train(model, opt, 20))
